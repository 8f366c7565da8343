"""Facts of the protocol and the generator of the code made from them; not part of any installed package."""
