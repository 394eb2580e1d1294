"""Terms: what all parties of a federation agree on before it begins."""

from cloister.deploy.terms.federation_terms import FederationTerms
from cloister.deploy.terms.public_terms import PublicTerms
from cloister.deploy.terms.sample_terms import SampleTerms
from cloister.deploy.terms.terms import Terms

__all__ = ["FederationTerms", "PublicTerms", "SampleTerms", "Terms"]
