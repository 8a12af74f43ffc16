"""Made by `python -m services.shop.generate` from shop.proto; do not edit."""
