"""One package per format. Decoders and encoders are synchronous and pure."""
