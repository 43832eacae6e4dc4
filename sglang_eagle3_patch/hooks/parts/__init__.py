"""What several patches need to know of SGLang's objects. No patch is declared here."""
