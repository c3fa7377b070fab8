"""Parties on a real network: servers, clients and couriers with keys, TLS links and a disk each."""
