"""HTTP servers of joins. Only this room imports `fastapi` and `uvicorn`.

May import: joins.
Start: serving.py.
"""
