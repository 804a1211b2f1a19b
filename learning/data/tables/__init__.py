"""Tables, and the public schema that says how their columns become numbers."""
