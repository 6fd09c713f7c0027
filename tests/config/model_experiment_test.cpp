// `model:` experiments: what arrives, and what plan.json shows of it.
#include "dtrain/config/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_file.h"

namespace dtrain::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Experiment read_model_text(const std::string& text) {
  const TemporaryFile file(text);
  return read_experiment(file.path());
}

// What every model experiment of these tests has, and its data.
std::string model_text(const std::string& optimizer, const std::string& data, const std::string& loss = "mse") {
  return "model: nets/cnn.pt\nloss: " + loss + "\noptimizer: " + optimizer + "\ndata: " + data +
         kLeast.substr(kLeast.find('\n'));
}
const std::string kIdx = "{format: idx, training: {features: a.gz, target: b.gz}}";

TEST(ModelExperiment, EveryKeyArrives) {
  const TemporaryFile file(model_text(
      "{kind: adamw, lr: 1e-2, betas: [0.5, 0], eps: 1e-6, weight_decay: 0, max_gradient_norm: 1.5,"
      " lr_schedule: {kind: cosine, warmup_steps: 3, total_steps: 50, final_factor: 0.1}}",
      "{format: idx, training: {features: a.gz, target: /abs/b.gz}, validation: {features: c, target: ../d}, scale: 2}",
      "cross_entropy"));
  const Experiment experiment = read_experiment(file.path());
  const auto folder = file.path().parent_path();
  EXPECT_THAT(experiment.entrypoint, ElementsAre("dtrain-worker"));
  EXPECT_EQ(experiment.data, Json::object());
  ASSERT_TRUE(experiment.model);
  const ModelJob& model = *experiment.model;
  EXPECT_EQ(model.file, folder / "nets/cnn.pt");
  EXPECT_EQ(model.loss, Loss::kCrossEntropy);
  OptimizerSettings optimizer{.kind = OptimizerKind::kAdamW, .lr = 0.01, .beta1 = 0.5, .beta2 = 0, .eps = 1e-6};
  optimizer.max_gradient_norm = 1.5;
  optimizer.lr_schedule = {.kind = LrScheduleKind::kCosine, .warmup_steps = 3, .total_steps = 50, .final_factor = 0.1};
  EXPECT_EQ(model.optimizer, optimizer);
  EXPECT_EQ(model.data.format, DataFormat::kIdx);
  EXPECT_EQ(model.data.training, (DataSource{folder / "a.gz", "/abs/b.gz", {}, {}, {}}));
  EXPECT_EQ(model.data.validation, (DataSource{folder / "c", folder.parent_path() / "d", {}, {}, {}}));
  EXPECT_EQ(model.data.scale, 2.0);
}

TEST(ModelExperiment, DefaultsAreThoseOfTorchOptim) {
  const auto optimizer = [](const std::string& kind) {
    return read_model_text(model_text("{kind: " + kind + ", lr: 0.5}", kIdx)).model->optimizer;
  };
  OptimizerSettings expected{.kind = OptimizerKind::kSgd, .lr = 0.5};
  EXPECT_EQ(optimizer("sgd"), expected);
  expected.kind = OptimizerKind::kAdam;
  EXPECT_EQ(optimizer("adam"), expected);
  expected.kind = OptimizerKind::kAdamW;
  expected.weight_decay = 0.01;
  EXPECT_EQ(optimizer("adamw"), expected);
  const ModelData data = read_model_text(model_text("{kind: sgd, lr: 1}", kIdx)).model->data;
  EXPECT_FALSE(data.validation);
  EXPECT_FALSE(data.scale);
}

TEST(ModelExperiment, SgdHasItsOwnKeys) {
  const std::string text = "{kind: sgd, lr: 1, momentum: 0.9, nesterov: true, weight_decay: 0.1}";
  const OptimizerSettings settings = read_model_text(model_text(text, kIdx)).model->optimizer;
  EXPECT_EQ(settings.momentum, 0.9);
  EXPECT_TRUE(settings.nesterov);
  EXPECT_EQ(settings.weight_decay, 0.1);
  EXPECT_EQ(
      read_model_text(model_text("{kind: sgd, lr: 1, momentum: 1, dampening: 0.25}", kIdx)).model->optimizer.dampening,
      0.25);
}

TEST(ModelExperiment, EveryFormatOfData) {
  const auto read = [](const TemporaryFile& file) { return read_experiment(file.path()).model->data; };
  const std::string sgd = "{kind: sgd, lr: 1}";

  const TemporaryFile npy(model_text(sgd, "{format: npy, training: {features: a.npy, target: b.npy}, scale: null}"));
  EXPECT_EQ(read(npy).format, DataFormat::kNpy);
  EXPECT_EQ(read(npy).training.target, npy.path().parent_path() / "b.npy");

  const TemporaryFile safetensors(model_text(
      sgd, "{format: safetensors, training: {file: t, features: x}, validation: {file: v, target: y}, scale: 0.5}"));
  const auto folder = safetensors.path().parent_path();
  EXPECT_EQ(read(safetensors).format, DataFormat::kSafetensors);
  EXPECT_EQ(read(safetensors).training, (DataSource{{}, {}, folder / "t", "x", "target"}));
  EXPECT_EQ(read(safetensors).validation, (DataSource{{}, {}, folder / "v", "features", "y"}));
  EXPECT_EQ(read(safetensors).scale, 0.5);

  const TemporaryFile tokens(model_text(
      sgd, "{format: tokens, training: {file: t}, token_type: int64, sequence_length: 128}", "cross_entropy"));
  EXPECT_EQ(read(tokens).format, DataFormat::kTokens);
  EXPECT_EQ(read(tokens).training, (DataSource{{}, {}, tokens.path().parent_path() / "t", {}, {}}));
  EXPECT_EQ(read(tokens).token_type, TokenType::kInt64);
  EXPECT_EQ(read(tokens).sequence_length, 128);
}

TEST(ModelExperiment, LearningRateSchedules) {
  const auto schedule = [](const std::string& text) {
    return read_model_text(model_text("{kind: sgd, lr: 1, lr_schedule: " + text + "}", kIdx))
        .model->optimizer.lr_schedule;
  };
  EXPECT_EQ(schedule("{kind: constant}"), LrScheduleSettings{});
  EXPECT_EQ(schedule("{kind: step, step_size: 7}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kStep, .step_size = 7, .gamma = 0.1}));
  EXPECT_EQ(schedule("{kind: cosine, total_steps: 9}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kCosine, .total_steps = 9}));
}

TEST(ModelExperiment, ItsValuesCanBeOverridden) {
  const TemporaryFile file(model_text("{kind: sgd, lr: 1}", kIdx));
  const std::vector<std::string> overrides{"optimizer.kind=adam", "optimizer.lr=0.25", "data.scale=3"};
  const ModelJob model = *read_experiment(file.path(), overrides).model;
  EXPECT_EQ(model.optimizer, (OptimizerSettings{.kind = OptimizerKind::kAdam, .lr = 0.25}));
  EXPECT_EQ(model.data.scale, 3.0);
}

TEST(ModelExperiment, JsonShowsWhatTheKindAndTheFormatHave) {
  const auto json = [](const std::string& text) {
    const TemporaryFile file(text);
    std::string line = to_line(to_json(read_experiment(file.path())));
    const std::string folder = file.path().parent_path().string() + "/";
    for (auto at = line.find(folder); at != std::string::npos; at = line.find(folder)) line.erase(at, folder.size());
    return line;
  };
  const std::string idx = json(model_text("{kind: sgd, lr: 0.1}", kIdx));
  EXPECT_THAT(
      idx,
      HasSubstr(
          R"("model":"nets/cnn.pt","loss":"mse","optimizer":{"kind":"sgd","lr":0.1,"momentum":0.0,)"
          R"("dampening":0.0,"nesterov":false,"weight_decay":0.0,"max_gradient_norm":0.0,"lr_schedule":{"kind":"constant"}})"));
  EXPECT_THAT(idx, HasSubstr(R"("data":{"format":"idx","training":{"features":"a.gz","target":"b.gz"},)"
                             R"("validation":null,"scale":null})"));
  EXPECT_THAT(idx, Not(HasSubstr("entrypoint")));
  const std::string tokens = "{format: tokens, training: {file: t}, validation: {file: v}, sequence_length: 8}";
  const std::string adamw = json(model_text("{kind: adamw, lr: 0.1}", tokens, "cross_entropy"));
  EXPECT_THAT(adamw, HasSubstr(R"("optimizer":{"kind":"adamw","lr":0.1,"betas":[0.9,0.999],"eps":1e-08,)"
                               R"("weight_decay":0.01,"max_gradient_norm":0.0,"lr_schedule":{"kind":"constant"}})"));
  EXPECT_THAT(adamw, HasSubstr(R"("data":{"format":"tokens","training":{"file":"t"},"validation":{"file":"v"},)"
                               R"("token_type":"uint16","sequence_length":8})"));
  const std::string named = "{format: safetensors, training: {file: t}}";
  EXPECT_THAT(json(model_text("{kind: adam, lr: 1}", named)),
              HasSubstr(R"("training":{"file":"t","features":"features","target":"target"})"));
}

}  // namespace
}  // namespace dtrain::config
