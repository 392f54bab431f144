"""An exported folder answers requests: its own runner behind Uvicorn and Starlette, in the Open Inference Protocol."""
