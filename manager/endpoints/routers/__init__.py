"""The routers' side of the leader: gives them the table of endpoints, and adds up what they measure."""
