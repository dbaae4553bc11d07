"""Two services that exchange events: a shop takes orders, a warehouse ships them."""
