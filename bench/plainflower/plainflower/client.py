"""The client, one per node: its model stays in the context, its mean prototypes are sent."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plainflower import task

app = ClientApp()


def _model(context: Context) -> task.CNN:
    model = task.CNN()
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a round and answer with the mean prototype of each class."""
    model = _model(context)
    path = context.run_config["experiment"]
    loader, _ = task.loaders(path, context.node_config["partition-id"])
    globals_JV = message.content["globals"].to_torch_state_dict().get("means")
    task.train(model, loader, globals_JV, task.everything(path)[0])
    means, counts = task.class_means(model, loader)
    context.state["model"] = ArrayRecord(model.state_dict())
    return Message(
        RecordDict({"means": ArrayRecord({"means": means, "counts": counts})}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Answer with the accuracy on the client's test samples."""
    _, loader = task.loaders(context.run_config["experiment"], context.node_config["partition-id"])
    metrics = MetricRecord({"accuracy": task.accuracy(_model(context), loader)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
