"""Operating parties: status, metrics, web pages, the doctor, a local cluster, and chaos."""
