"""What tests share: builders, federations, programs."""
