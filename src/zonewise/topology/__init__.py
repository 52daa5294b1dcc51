"""What a domain is: node labels, zones, capacity and node-selector terms. Pure: values in, values out."""
