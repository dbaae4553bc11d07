"""The attributes that tell what was done to a body on its way."""

COMPRESSED, ENCRYPTED = "posthouse-compression", "posthouse-encryption"
