"""HTTP servers of joins. Only this room imports `fastapi` and `uvicorn`.

May import: clients, joins.
Start: serving.py.
"""
