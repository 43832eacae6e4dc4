"""Compares SGLang's own draft class, in this process, with the plain torch reference."""
