"""The server's side of mode masked: masked sums, and the notaries that let it open them."""
