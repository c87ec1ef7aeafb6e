"""What scripts/card_probe measures on a card, one module a section, and how it is written down."""
