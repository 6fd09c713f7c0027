"""Trains the model of other_side_models.py on the experiment's data, as a `model:` experiment does."""
import dtrain
import other_side_models as models
from torch.nn import functional as F

session = dtrain.init()
settings = session.hyperparameters
model = models.make(settings["net"])
optimizer = models.make_optimizer(settings["net"], model)
schedules = models.make_schedules(settings["schedule"], optimizer)
data = session.data_set("idx", features=settings["features"], target=settings["target"])
model, optimizer, loader, *schedules = session.wrap(model, optimizer, data, *schedules)
for epoch in range(20):  # the run ends at searcher.max_length
    for batch in loader:
        loss = F.cross_entropy(model(models.features_of(batch)), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
