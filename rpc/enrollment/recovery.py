"""Proves, without a certificate that is still valid, to have the private key of one."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

# Nothing else that is signed with the key of a node begins like this: neither TLS, nor a certificate request.
_PREFIX = b"retinue: recover a certificate\0"


def _message(challenge: bytes, certificate_request: str) -> bytes:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(challenge)
    return _PREFIX + digest.finalize() + certificate_request.encode()


def sign(private_key: str, challenge: bytes, certificate_request: str) -> bytes:
    """Returns the proof for a challenge, and for no other request, by a private key in PEM. Raises ValueError."""
    key = serialization.load_pem_private_key(private_key.encode(), None)
    message = _message(challenge, certificate_request)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, padding.PKCS1v15(), hashes.SHA256())
    raise ValueError("the node's key is neither of an elliptic curve nor of RSA")


def proves(key: PublicKey, proof: bytes, challenge: bytes, certificate_request: str) -> bool:
    """Returns whether the owner of the key made the proof, for this challenge and this request."""
    message = _message(challenge, certificate_request)
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(proof, message, padding.PKCS1v15(), hashes.SHA256())
        else:
            key.verify(proof, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
