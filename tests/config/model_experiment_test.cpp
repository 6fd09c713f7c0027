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
data::Source source_of(std::initializer_list<std::pair<const char*, std::filesystem::path>> values) {
  data::Source source;
  for (const auto& [name, value] : values) source[name] = value.string();
  return source;
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
  EXPECT_EQ(model.loss, LossSettings{});
  OptimizerSettings optimizer;
  optimizer.optimizer = AdamW{.lr = 0.01, .beta1 = 0.5, .beta2 = 0, .eps = 1e-6, .weight_decay = 0};
  optimizer.max_gradient_norm = 1.5;
  optimizer.lr_schedule = {.kind = LrScheduleKind::kCosine, .warmup_steps = 3, .total_steps = 50, .final_factor = 0.1};
  EXPECT_EQ(model.optimizer, optimizer);
  EXPECT_EQ(model.data.format, data::Format(data::Idx{.scale = 2.0}));
  EXPECT_EQ(model.data.training, source_of({{"features", folder / "a.gz"}, {"target", "/abs/b.gz"}}));
  EXPECT_EQ(model.data.validation, source_of({{"features", folder / "c"}, {"target", folder.parent_path() / "d"}}));
}

TEST(ModelExperiment, TransformsArrive) {
  const TemporaryFile file(model_text(
      "{kind: sgd, lr: 1}",
      "{format: shards, scaled_decoding: true, training: {files: \"t-{00..10}.tar\", transforms: ["
      "{kind: random_resized_crop, size: 224, width: 192, min_area: 0.3}, {kind: horizontal_flip, probability: 0.1},"
      " {kind: color_jitter, brightness: 0.4}, {kind: normalize, mean: [0, 0.5, 1]}, {kind: mixup, alpha: 0.2, "
      "classes: 5}]},"
      " validation: {files: v.tar, transforms: [{kind: resize, size: 256}, {kind: center_crop, size: 224}]}}",
      "cross_entropy"));
  const Experiment experiment = read_experiment(file.path());
  const ModelData& data = experiment.model->data;
  EXPECT_EQ(data.format, data::Format(data::Shards{.scaled_decoding = true}));
  EXPECT_EQ(data.training, source_of({{"files", file.path().parent_path() / "t-{00..10}.tar"}}));
  const data::Normalize normalize{.mean = {0, 0.5, 1}};
  EXPECT_THAT(transforms_of(data.transforms.training),
              ElementsAre(data::RandomResizedCrop{.size = 224, .width = 192, .min_area = 0.3},
                          data::HorizontalFlip{.probability = 0.1}, data::ColorJitter{.brightness = 0.4}, normalize,
                          data::MixUp{.alpha = 0.2, .classes = 5}));
  EXPECT_THAT(transforms_of(data.transforms.validation),
              ElementsAre(data::Resize{.size = 256}, data::CenterCrop{.size = 224}));
  const Json plan = to_json(experiment)["data"];
  EXPECT_EQ(to_line(plan["validation"]["transforms"]),
            R"([{"kind":"resize","size":256,"width":null},{"kind":"center_crop","size":224,"width":null}])");
  EXPECT_EQ(plan["training"]["transforms"][4], (Json{{"kind", "mixup"}, {"alpha", 0.2}, {"classes", 5}}));
}

TEST(ModelExperiment, APairOfFiles) {
  const std::string one = model_text("{kind: sgd, lr: 1}", kIdx);
  const TemporaryFile file("model: {train: nets/a.pt, eval: /abs/b.pt}" + one.substr(one.find('\n')));
  const Experiment experiment = read_experiment(file.path());
  const std::filesystem::path train = file.path().parent_path() / "nets/a.pt";
  EXPECT_EQ(experiment.model->file, train);
  EXPECT_EQ(experiment.model->eval_file, "/abs/b.pt");
  EXPECT_EQ(to_json(experiment)["model"], (Json{{"train", train.string()}, {"eval", "/abs/b.pt"}}));
  const std::vector<ModelFile> files = files_of(*experiment.model);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_STREQ(files[1].key, "model.eval");
  EXPECT_EQ(files[1].path, "/abs/b.pt");
  const std::vector<std::string> overrides{"model=c.pt"};
  EXPECT_EQ(read_experiment(file.path(), overrides).model->eval_file, "");
}

// So that a run that is continued, whose file is named by its whole path, has the paths that it began with.
TEST(ModelExperiment, ItsPathsAreTheSameHoweverTheFileIsNamed) {
  const std::string model = model_text("{kind: sgd, lr: 1}", kIdx);
  for (const std::string& text : {model, "model: {train: nets/a.pt, eval: b.pt}" + model.substr(model.find('\n'))}) {
    const TemporaryFile file(text + "initial_weights: w.safetensors\noptimizations: {grad_updates_size_file: sizes}\n");
    EXPECT_EQ(to_json(read_experiment(std::filesystem::relative(file.path()))), to_json(read_experiment(file.path())));
  }
}

TEST(ModelExperiment, ALossHasSettings) {
  const auto loss = [](const std::string& text) {
    return read_model_text(model_text("{kind: sgd, lr: 0.5}", kIdx, text)).model->loss;
  };
  LossSettings expected{.loss = CrossEntropy{.label_smoothing = 0.1,
                                             .ignore_index = -100,
                                             .class_weights = {1, 2.5},
                                             .class_dimension = ClassDimension::kLast},
                        .output = "logits",
                        .auxiliary = {{"late", 0.4}, {"1", 0.2}}};
  EXPECT_EQ(loss("{kind: cross_entropy, label_smoothing: 0.1, ignore_index: -100, class_weights: [1, 2.5],"
                 " class_dimension: last, output: logits, auxiliary: {late: 0.4, 1: 0.2}}"),
            expected);
  EXPECT_TRUE(weighs_batches(expected.loss));
  expected = {.loss = SmoothL1{.beta = 0.5}, .output = "0", .auxiliary = {}};
  EXPECT_EQ(loss("{kind: smooth_l1, beta: 0.5, output: 0}"), expected);
  EXPECT_FALSE(weighs_batches(expected.loss));
  EXPECT_EQ(loss("kl_div"), LossSettings{.loss = KlDivergence()});
  EXPECT_EQ(loss("{kind: kl_div, log_target: true}"), LossSettings{.loss = KlDivergence{.log_target = true}});
}

TEST(ModelExperiment, MetricsAreThoseOfTheLossByDefault) {
  const auto words = [](const std::string& loss, const std::string& metrics) {
    const std::string key = metrics.empty() ? "" : "\nmetrics: " + metrics;
    const Experiment experiment = read_model_text(model_text("{kind: sgd, lr: 1}", kIdx, loss + key));
    std::vector<std::string> all;
    for (const Metric& metric : experiment.model->metrics) all.push_back(metric.word);
    return all;
  };
  EXPECT_THAT(words("cross_entropy", ""), ElementsAre("accuracy"));
  EXPECT_THAT(words("bce_with_logits", "null"), ElementsAre("accuracy"));
  EXPECT_THAT(words("mse", ""), ElementsAre());
  EXPECT_THAT(words("mse", "[]"), ElementsAre());
  EXPECT_THAT(words("cross_entropy", "[]"), ElementsAre());
  EXPECT_THAT(words("cross_entropy", "[f1, top_5_accuracy, perplexity]"),
              ElementsAre("f1", "top_5_accuracy", "perplexity"));
  EXPECT_THAT(words("bce_with_logits", "[auc, iou]"), ElementsAre("auc", "iou"));
  EXPECT_EQ(metric_named("top_12_accuracy"), (Metric{MetricKind::kTopAccuracy, "top_12_accuracy", 12}));
  for (const char* word : {"top_1_accuracy", "top_05_accuracy", "top__accuracy", "top_accuracy", "top_-2_accuracy",
                           "top_1000000_accuracy", "top_5_accuracy ", ""})
    EXPECT_FALSE(metric_named(word)) << word;
}

TEST(ModelExperiment, CtcNamesItsLengths) {
  const std::string data = "{format: safetensors, training: {file: t}}";
  const auto loss = [&](const std::string& text) {
    return read_model_text(model_text("{kind: sgd, lr: 1}", data, text)).model->loss.loss;
  };
  EXPECT_EQ(loss("ctc"), Loss(Ctc()));
  EXPECT_THAT(tensors_of(loss("{kind: ctc, input_lengths: frames}")), ElementsAre("frames", "target_lengths"));
  EXPECT_EQ(loss("{kind: ctc, target_lengths: letters, blank: 4, batch_first: true, zero_infinity: true}"),
            Loss(Ctc{.target_lengths = "letters", .blank = 4, .batch_first = true, .zero_infinity = true}));
  EXPECT_THAT(tensors_of(Loss(CrossEntropy())), ElementsAre());
}

TEST(ModelExperiment, DefaultsAreThoseOfTorchOptim) {
  const auto optimizer = [](const std::string& kind) {
    return read_model_text(model_text("{kind: " + kind + ", lr: 0.5}", kIdx)).model->optimizer;
  };
  EXPECT_EQ(optimizer("sgd"), OptimizerSettings{Sgd{.lr = 0.5}});
  EXPECT_EQ(optimizer("adam"), OptimizerSettings{Adam{.lr = 0.5}});
  const AdamW adamw{.lr = 0.5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  EXPECT_EQ(optimizer("adamw"), OptimizerSettings{adamw});
  const ModelData data = read_model_text(model_text("{kind: sgd, lr: 1}", kIdx)).model->data;
  EXPECT_FALSE(data.validation);
  EXPECT_EQ(data.format, data::Format(data::Idx()));
}

TEST(ModelExperiment, SgdHasItsOwnKeys) {
  const auto optimizer = [](const std::string& text) {
    return read_model_text(model_text(text, kIdx)).model->optimizer.optimizer;
  };
  EXPECT_EQ(optimizer("{kind: sgd, lr: 1, momentum: 0.9, nesterov: true, weight_decay: 0.1}"),
            Optimizer(Sgd{.lr = 1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}));
  EXPECT_EQ(optimizer("{kind: sgd, lr: 1, momentum: 1, dampening: 0.25}"),
            Optimizer(Sgd{.lr = 1, .momentum = 1, .dampening = 0.25}));
}

TEST(ModelExperiment, EveryFormatOfData) {
  const auto read = [](const TemporaryFile& file) { return read_experiment(file.path()).model->data; };
  const std::string sgd = "{kind: sgd, lr: 1}";

  const TemporaryFile npy(model_text(sgd, "{format: npy, training: {features: a.npy, target: b.npy}, scale: null}"));
  EXPECT_EQ(read(npy).format, data::Format(data::Npy()));
  EXPECT_EQ(read(npy).training.at("target"), (npy.path().parent_path() / "b.npy").string());

  const TemporaryFile safetensors(model_text(
      sgd, "{format: safetensors, training: {file: t, features: x}, validation: {file: v, target: y}, scale: 0.5}"));
  const auto folder = safetensors.path().parent_path();
  EXPECT_EQ(read(safetensors).format, data::Format(data::Safetensors{.scale = 0.5}));
  EXPECT_EQ(read(safetensors).training, source_of({{"file", folder / "t"}, {"features", "x"}, {"target", "target"}}));
  EXPECT_EQ(read(safetensors).validation,
            source_of({{"file", folder / "v"}, {"features", "features"}, {"target", "y"}}));

  const TemporaryFile tokens(model_text(
      sgd, "{format: tokens, training: {file: t}, token_type: int64, sequence_length: 128}", "cross_entropy"));
  EXPECT_EQ(read(tokens).format,
            data::Format(data::Tokens{.token_type = data::TokenType::kInt64, .sequence_length = 128}));
  EXPECT_EQ(read(tokens).training, source_of({{"file", tokens.path().parent_path() / "t"}}));

  const TemporaryFile raw(model_text(sgd,
                                     "{format: raw, training: {features: 'x-*', target: y}, features_shape: [3, 4], "
                                     "features_type: uint8, target_shape: []}"));
  EXPECT_EQ(read(raw).format,
            data::Format(data::Raw{.features_type = data::ElementType::kUint8, .features_shape = {3, 4}}));
  EXPECT_EQ(read(raw).training.at("features"), (raw.path().parent_path() / "x-*").string());

  const TemporaryFile csv(
      model_text(sgd, "{format: csv, training: {file: a.csv}, delimiter: tab, target_column: y, target_is: number}"));
  EXPECT_EQ(read(csv).format,
            data::Format(data::Csv{
                .delimiter = data::CsvDelimiter::kTab, .target_column = "y", .target_is = data::CsvTarget::kNumber}));
}

TEST(ModelExperiment, HowDataIsRead) {
  const auto loader = [](const std::string& keys) {
    const std::string data = "{format: npy, training: {features: a, target: b}" + keys + "}";
    return read_model_text(model_text("{kind: sgd, lr: 1}", data)).model->data.loader;
  };
  EXPECT_EQ(loader(""), LoaderKeys());
  EXPECT_EQ(loader(", workers: auto").workers, LoaderKeys::kAuto);
  EXPECT_EQ(loader(", workers: 0").workers, 0);
  EXPECT_EQ(loader(", workers: 4, prefetch: 0, pin: false, shuffle: true, drop_last: false, shuffle_window: 64, "
                   "on_error: skip, max_skipped: 0"),
            (LoaderKeys{.workers = 4,
                        .prefetch = 0,
                        .pin = false,
                        .drop_last = false,
                        .shuffle_window = 64,
                        .on_error = OnDamage::kSkip,
                        .max_skipped = 0}));
}

TEST(ModelExperiment, LearningRateSchedules) {
  const auto schedule = [](const std::string& text) {
    return read_model_text(model_text("{kind: sgd, lr: 1, lr_schedule: " + text + "}", kIdx))
        .model->optimizer.lr_schedule;
  };
  EXPECT_EQ(schedule("{kind: constant}"), LrScheduleSettings{});
  EXPECT_EQ(schedule("{kind: step, step_size: 7}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kStep, .step_size = 7, .gamma = 0.1}));
  EXPECT_EQ(schedule("{kind: step, unit: epochs, step_size: 30}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kStep, .unit = LrScheduleUnit::kEpochs, .step_size = 30}));
  EXPECT_EQ(
      schedule("{kind: multi_step, milestones: [3, 8], gamma: 0.5, warmup_steps: 2}"),
      (LrScheduleSettings{.kind = LrScheduleKind::kMultiStep, .warmup_steps = 2, .milestones = {3, 8}, .gamma = 0.5}));
  EXPECT_EQ(schedule("{kind: exponential, gamma: 0.5}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kExponential, .gamma = 0.5}));
  EXPECT_EQ(
      schedule("{kind: linear, total_steps: 9, first_factor: 2, final_factor: 0.5}"),
      (LrScheduleSettings{.kind = LrScheduleKind::kLinear, .total_steps = 9, .first_factor = 2, .final_factor = 0.5}));
  EXPECT_EQ(schedule("{kind: polynomial, total_steps: 9, power: 2}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kPolynomial, .total_steps = 9, .power = 2}));
  EXPECT_EQ(
      schedule("{kind: one_cycle, total_steps: 9, rise: 0.5, div_factor: 5, final_div_factor: 10}"),
      (LrScheduleSettings{
          .kind = LrScheduleKind::kOneCycle, .total_steps = 9, .rise = 0.5, .div_factor = 5, .final_div_factor = 10}));
  EXPECT_EQ(schedule("{kind: cosine, total_steps: 9}"),
            (LrScheduleSettings{.kind = LrScheduleKind::kCosine, .total_steps = 9}));
}

TEST(ModelExperiment, GroupsOfParameters) {
  const auto groups = [](const std::string& text) {
    return read_model_text(model_text("{kind: lion, lr: 1, groups: " + text + "}", kIdx)).model->optimizer.groups;
  };
  EXPECT_THAT(groups("[]"), ElementsAre());
  EXPECT_THAT(groups("[{match: '*.bias', weight_decay: 0},"
                     " {match: head.*, lr: 0.5, lr_schedule: {kind: step, step_size: 7}}]"),
              ElementsAre(ParameterGroupSettings{.match = "*.bias", .lr = {}, .weight_decay = 0, .lr_schedule = {}},
                          ParameterGroupSettings{
                              .match = "head.*",
                              .lr = 0.5,
                              .weight_decay = {},
                              .lr_schedule = LrScheduleSettings{.kind = LrScheduleKind::kStep, .step_size = 7}}));
}

TEST(ModelExperiment, GroupsHaveLimitsOfTheirOwn) {
  const auto groups =
      read_model_text(model_text("{kind: lamb, lr: 1, groups: [{match: a, max_gradient_norm: 2}, {match: b, "
                                 "max_gradient_value: 0}, {match: c}]}",
                                 kIdx))
          .model->optimizer.groups;
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].max_gradient_norm, 2);
  EXPECT_EQ(groups[0].max_gradient_value, std::nullopt);
  EXPECT_EQ(groups[1].max_gradient_value, 0);
  EXPECT_EQ(groups[2].max_gradient_norm, std::nullopt);
}

TEST(ModelExperiment, TheKeysOfMuon) {
  const auto optimizer =
      read_model_text(model_text("{kind: muon, lr: 0.02, momentum: 0.9, nesterov: false, ns_steps: 3, "
                                 "match_rms_adamw: true, adamw_lr: 0.004, adamw_match: head.*, "
                                 "betas: [0.8, 0.9], eps: 1e-6, weight_decay: 0.2}",
                                 kIdx))
          .model->optimizer.optimizer;
  EXPECT_EQ(std::get<Muon>(optimizer), (Muon{.lr = 0.02,
                                             .momentum = 0.9,
                                             .nesterov = false,
                                             .ns_steps = 3,
                                             .match_rms_adamw = true,
                                             .weight_decay = 0.2,
                                             .adamw_match = "head.*",
                                             .adamw_lr = 0.004,
                                             .beta1 = 0.8,
                                             .beta2 = 0.9,
                                             .eps = 1e-6}));
}

TEST(ModelExperiment, ItsValuesCanBeOverridden) {
  const TemporaryFile file(model_text("{kind: sgd, lr: 1}", kIdx));
  const std::vector<std::string> overrides{"optimizer.kind=adam", "optimizer.lr=0.25", "data.scale=3"};
  const ModelJob model = *read_experiment(file.path(), overrides).model;
  EXPECT_EQ(model.optimizer, OptimizerSettings{Adam{.lr = 0.25}});
  EXPECT_EQ(model.data.format, data::Format(data::Idx{.scale = 3.0}));
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
          R"("model":"nets/cnn.pt","loss":"mse","metrics":[],"optimizer":{"kind":"sgd","lr":0.1,"momentum":0.0,)"
          R"("dampening":0.0,"nesterov":false,"weight_decay":0.0,"groups":[],"trainable":"","max_gradient_norm":0.0,)"
          R"("max_gradient_value":0.0,"lr_schedule":{"kind":"constant","unit":"steps","warmup_steps":0},"reduce_on_plateau":null})"));
  EXPECT_THAT(idx, HasSubstr(R"("data":{"format":"idx","training":{"features":"a.gz","target":"b.gz"},)"
                             R"("validation":null,"scale":null,"workers":"auto","prefetch":2,)"));
  EXPECT_THAT(idx, Not(HasSubstr("entrypoint")));
  const std::string tokens = "{format: tokens, training: {file: t}, validation: {file: v}, sequence_length: 8}";
  const std::string adamw = json(model_text("{kind: adamw, lr: 0.1}", tokens, "cross_entropy"));
  EXPECT_THAT(
      adamw,
      HasSubstr(R"("optimizer":{"kind":"adamw","lr":0.1,"weight_decay":0.01,"betas":[0.9,0.999],)"
                R"("eps":1e-08,"groups":[],"trainable":"","max_gradient_norm":0.0,"max_gradient_value":0.0,)"
                R"("lr_schedule":{"kind":"constant","unit":"steps","warmup_steps":0},"reduce_on_plateau":null})"));
  EXPECT_THAT(adamw, HasSubstr(R"("loss":"cross_entropy","metrics":["accuracy"],"optimizer")"));
  EXPECT_THAT(adamw, HasSubstr(R"("data":{"format":"tokens","training":{"file":"t"},"validation":{"file":"v"},)"
                               R"("token_type":"uint16","sequence_length":8,"workers":"auto",)"));
  const std::string named = "{format: safetensors, training: {file: t}}";
  EXPECT_THAT(json(model_text("{kind: adam, lr: 1}", named)),
              HasSubstr(R"("training":{"file":"t","features":"features","target":"target"})"));
}

}  // namespace
}  // namespace dtrain::config
