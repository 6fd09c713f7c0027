"""The same as other_side_script.py as a Trial."""
import dtrain
import other_side_models as models
from torch.nn import functional as F


class OtherSide(dtrain.Trial):
    def __init__(self, context):
        super().__init__(context)
        settings = context.hyperparameters
        self.model = context.wrap_model(models.make(settings["net"]))
        optimizer = context.wrap_optimizer(models.make_optimizer(settings["net"], self.model))
        for schedule in models.make_schedules(settings["schedule"], optimizer):
            context.wrap_lr_scheduler(schedule)
        self.files = {"features": settings["features"], "target": settings["target"]}

    def training_loader(self):
        return self.context.data_set("idx", **self.files)

    def train_batch(self, batch):
        loss = F.cross_entropy(self.model(models.features_of(batch)), batch["label"])
        self.context.backward(loss)
        return {"loss": loss}
