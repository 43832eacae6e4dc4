"""Counting accepted drafts. Knows neither SGLang nor torch.

Accept length counts the bonus token, accept rate does not: length = (accepted + steps) / steps,
rate = accepted / proposed, both over requests' verify steps.
"""
