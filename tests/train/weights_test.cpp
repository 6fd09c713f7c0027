// What a training may start from: files of other programs with other names and types, tied tensors, several files.
#include <gtest/gtest.h>

#include <fstream>

#include <torch/torch.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "model/model_tensors.h"
#include "model/weights.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;
using config::InitialWeights;

// embed.weight and head.weight are one parameter.
struct SharedNetImpl : torch::nn::Module {
  SharedNetImpl() : embed(register_module("embed", torch::nn::Embedding(4, 3))) {
    auto head = register_module("head", std::make_shared<torch::nn::Module>());
    head->register_parameter("weight", embed->weight);
    last = register_module("last", torch::nn::Linear(3, 2));
    mean = register_buffer("mean", torch::zeros({2}));
  }
  torch::nn::Embedding embed;
  torch::nn::Linear last{nullptr};
  torch::Tensor mean;
};
TORCH_MODULE(SharedNet);

// As Python's buffers with persistent=False are.
struct CachedImpl : torch::nn::Module, LeavesTensorsOut {
  CachedImpl() {
    register_module("net", net.ptr());
    mask = register_buffer("mask", torch::full({2}, 5));
  }
  const std::set<std::string>& left_out() const override { return names; }
  SharedNet net;
  torch::Tensor mask;
  const std::set<std::string> names{"mask"};
};
TORCH_MODULE(Cached);

std::string refusal(torch::nn::Module& model, const InitialWeights& weights) {
  try {
    load_weights(model, weights);
  } catch (const ConfigError& error) {
    return std::string(error.what()) + "\n" + error.remedy();
  }
  return "was accepted";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
}

class Weights : public testing::Test {
 protected:
  Weights() { torch::manual_seed(7); }

  fs::path write(const NamedTensors& tensors, const std::string& name = "w.safetensors") {
    write_safetensors(folder_ / name, tensors);
    return folder_ / name;
  }
  fs::path write_text(const std::string& name, const std::string& text) { return temporary_.write(name, text); }

  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
  const at::Tensor embed_ = torch::randn({4, 3});
  const at::Tensor weight_ = torch::randn({2, 3});
  const at::Tensor bias_ = torch::randn({2});
  const at::Tensor mean_ = torch::randn({2});
  const NamedTensors all_{{"embed.weight", embed_}, {"last.weight", weight_}, {"last.bias", bias_}, {"mean", mean_}};

  NamedTensors with_names(const std::function<std::string(const std::string&)>& name) const {
    NamedTensors result;
    for (const auto& [old, tensor] : all_) result.emplace_back(name(old), tensor);
    return result;
  }
  void expect_loaded(const SharedNet& net) const {
    EXPECT_TRUE(torch::equal(net->embed->weight, embed_));
    EXPECT_TRUE(torch::equal(net->last->weight, weight_));
    EXPECT_TRUE(torch::equal(net->last->bias, bias_));
    EXPECT_TRUE(torch::equal(net->mean, mean_));
  }
};

TEST_F(Weights, ATiedTensorLoadsUnderAnyOfItsNames) {
  for (const char* name : {"embed.weight", "head.weight"}) {
    SharedNet net;
    NamedTensors tensors = all_;
    tensors.front().first = name;
    EXPECT_TRUE(load_weights(*net, {.file = write(tensors)}).warnings.empty());
    expect_loaded(net);
    EXPECT_EQ(net->named_parameters()["head.weight"].data_ptr(), net->embed->weight.data_ptr());
  }
  SharedNet net;
  NamedTensors twice = all_;
  twice.emplace_back("head.weight", embed_.clone());
  load_weights(*net, {.file = write(twice)});
  expect_loaded(net);
  twice.back().second = embed_ + 1;
  expect_parts(refusal(*net, {.file = write(twice)}), {"'embed.weight' and 'head.weight' are one tensor", "differ"});
  NamedTensors none(all_.begin() + 1, all_.end());
  expect_parts(refusal(*net, {.file = write(none)}), {"'embed.weight' (tied: 'head.weight') is not in the file"});
}

TEST_F(Weights, FilesNeitherHaveNorNeedWhatAModelLeavesOut) {
  const auto file = write(with_names([](const std::string& name) { return "net." + name; }));
  Cached model;
  load_weights(*model, {.file = file});
  expect_loaded(model->net);
  EXPECT_TRUE(torch::equal(model->mask, torch::full({2}, 5)));
  save_weights(*model, folder_ / "saved.safetensors");
  const auto saved = read_safetensors(folder_ / "saved.safetensors");
  EXPECT_EQ(saved.size(), 5u);  // the tied one under both names
  EXPECT_FALSE(saved.contains("mask"));
  // Those of earlier versions had it.
  NamedTensors with_mask = with_names([](const std::string& name) { return "net." + name; });
  with_mask.emplace_back("mask", torch::full({2}, 6));
  load_weights(*model, {.file = write(with_mask, "earlier.safetensors")});
  EXPECT_TRUE(torch::equal(model->mask, torch::full({2}, 6)));
}

TEST_F(Weights, TensorsThatCannotBeTrainedOrSavedAreNamed) {
  const auto refused = [](const torch::nn::Module& model) {
    try {
      check_tensors(model);
    } catch (const ConfigError& error) {
      return std::string(error.what()) + "\n" + error.remedy();
    }
    return std::string("was accepted");
  };
  EXPECT_EQ(refused(*Cached()), "was accepted");
  torch::nn::Module parameter, buffer, complex;
  parameter.register_parameter("scale", torch::ones({1}).expand({4}));
  expect_parts(refused(parameter), {"the parameter 'scale' of the model is an expanded tensor", "clone()"});
  buffer.register_buffer("mask", torch::ones({1, 3}).expand({4, 3}));
  expect_parts(refused(buffer), {"the buffer 'mask' of the model is an expanded tensor"});
  complex.register_buffer("turns", torch::ones({3}, torch::kComplexFloat));
  expect_parts(refused(complex), {"the buffer 'turns' of the model is of type ComplexFloat", "persistent=False"});
}

TEST_F(Weights, NamesOfAnotherProgramAreMapped) {
  SharedNet net;
  const fs::path wrapped = write(with_names([](const std::string& name) { return "module." + name; }));
  expect_parts(refusal(*net, {.file = wrapped}), {"'embed.weight' (tied: 'head.weight') is not in the file",
                                                  "'module.mean' is in the file", "strip_prefix: 'module.'"});
  load_weights(*net, {.file = wrapped, .strip_prefix = "module."});
  expect_loaded(net);

  const fs::path other =
      write({{"net.e.weight", embed_}, {"net.e.x.w", weight_}, {"net.e.x.bias", bias_}, {"mean", mean_}});
  SharedNet renamed;
  load_weights(*renamed, {.file = other,
                          .strip_prefix = "net.",
                          .rename = {{"e.", "embed."}, {"e.x.", "last."}, {"e.x.w", "last.weight"}}});
  expect_loaded(renamed);
}

TEST_F(Weights, AMappingThatFitsNoNameOrFitsTwoIsRefused) {
  SharedNet net;
  const fs::path file = write(all_);
  expect_parts(refusal(*net, {.file = file, .strict = false, .strip_prefix = "modul."}),
               {"initial_weights.strip_prefix: no tensor", "begins with 'modul.'",
                "safe_open(\"" + file.string() + "\", \"pt\")"});
  expect_parts(refusal(*net, {.file = file, .rename = {{"embd.", "x."}}}), {"initial_weights.rename", "'embd.'"});
  expect_parts(refusal(*net, {.file = file, .rename = {{"last.weight", "mean"}}}),
               {"'last.weight' and 'mean' of", "both become 'mean'"});
}

TEST_F(Weights, WithoutStrictWhatFitsIsLoadedAndTheRestIsNamed) {
  SharedNet net;
  const at::Tensor bias_before = net->last->bias.detach().clone();
  const at::Tensor mean_before = net->mean.clone();
  const fs::path file =
      write({{"embed.weight", embed_}, {"last.weight", weight_}, {"last.bias", torch::randn({5})}, {"decoder", mean_}});
  expect_parts(refusal(*net, {.file = file}),
               {"'last.bias' is [5] in the file and [2] in the model", "'mean' is not in the file",
                "'decoder' is in the file but not in the model"});
  const LoadedWeights loaded = load_weights(*net, {.file = file, .strict = false});
  ASSERT_EQ(loaded.warnings.size(), 1u);
  expect_parts(loaded.warnings.front(), {"2 of the model's 4 tensors", "'last.bias' is [5]", "'mean'", "'decoder'"});
  EXPECT_TRUE(torch::equal(net->embed->weight, embed_));
  EXPECT_TRUE(torch::equal(net->last->weight, weight_));
  EXPECT_TRUE(torch::equal(net->last->bias, bias_before));
  EXPECT_TRUE(torch::equal(net->mean, mean_before));

  const fs::path nothing = write({{"x", mean_}}, "nothing.safetensors");
  expect_parts(refusal(*net, {.file = nothing, .strict = false}),
               {"does not fit the model", "no tensor of the file fits"});
}

TEST_F(Weights, TypesAreConvertedOnlyWhereAsked) {
  SharedNet net;
  const fs::path file = write({{"embed.weight", embed_.to(torch::kBFloat16)},
                               {"last.weight", weight_.to(torch::kHalf)},
                               {"last.bias", bias_.to(torch::kFloat64)},
                               {"mean", mean_}});
  expect_parts(refusal(*net, {.file = file}), {"'embed.weight' is bfloat16 in the file and float32 in the model",
                                               "convert_types: true} converts them"});
  load_weights(*net, {.file = file, .convert_types = true});
  EXPECT_TRUE(torch::equal(net->embed->weight, embed_.to(torch::kBFloat16).to(torch::kFloat32)));
  EXPECT_TRUE(torch::equal(net->last->weight, weight_.to(torch::kHalf).to(torch::kFloat32)));
  EXPECT_TRUE(torch::equal(net->last->bias, bias_));
  NamedTensors whole = all_;
  whole.back().second = torch::ones({2}, torch::kLong);
  expect_parts(refusal(*net, {.file = write(whole), .convert_types = true}), {"'mean' is int64 in the file"});
}

TEST_F(Weights, LongListsAreCutAndCounted) {
  SharedNet net;
  NamedTensors many = all_;
  for (int i = 0; i < 50; ++i) many.emplace_back("surplus" + std::to_string(i), mean_);
  const std::string text = refusal(*net, {.file = write(many)});
  expect_parts(text, {"'surplus0' is in the file", "and 30 more"});
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 25);
}

// As Hugging Face cuts large models into files.
TEST_F(Weights, SeveralFilesHaveAnIndex) {
  write({{"embed.weight", embed_}, {"mean", mean_}}, "model-00001-of-00002.safetensors");
  write({{"last.weight", weight_}, {"last.bias", bias_}}, "model-00002-of-00002.safetensors");
  const fs::path index = write_text("model.safetensors.index.json", R"({"metadata": {"total_size": 1}, "weight_map": {
    "embed.weight": "model-00001-of-00002.safetensors", "mean": "model-00001-of-00002.safetensors",
    "last.weight": "model-00002-of-00002.safetensors", "last.bias": "model-00002-of-00002.safetensors"}})");
  for (const fs::path& path : {index, folder_, folder_ / ""}) {
    SharedNet net;
    load_weights(*net, {.file = path});
    expect_loaded(net);
  }
  SharedNet net;
  for (const std::string text : {"[]", "{", R"({"weight_map": {}})", R"({"weight_map": {"a": "../w.safetensors"}})",
                                 R"({"weight_map": {"a": 1}})", R"({"weight_map": {"a": "w.bin"}})"}) {
    EXPECT_THROW(load_weights(*net, {.file = write_text("bad.index.json", text)}), DataError) << text;
  }
}

TEST_F(Weights, WhatIsNeitherAFileNorACheckpointNorARunIsRefused) {
  SharedNet net;
  expect_parts(refusal(*net, {.file = folder_ / "none"}), {"there is no file " + (folder_ / "none").string()});
  expect_parts(refusal(*net, {.file = folder_}), {"is neither a checkpoint nor a run, and has no model.safetensors"});
  expect_parts(refusal(*net, {.file = write(all_), .checkpoint = config::CheckpointChoice::kBest}),
               {"initial_weights.checkpoint: best has an effect with a run alone"});
  fs::create_directories(folder_ / "step-5");
  write(all_, "step-5/model.safetensors");
  expect_parts(refusal(*net, {.file = folder_ / "step-5"}),
               {(folder_ / "step-5").string() + " cannot be used", "manifest.json"});
  write_text("experiment.yaml", "name: x\n");
  expect_parts(refusal(*net, {.file = folder_}), {"has neither a checkpoint nor final weights"});
  expect_parts(refusal(*net, {.file = folder_, .checkpoint = config::CheckpointChoice::kBest}),
               {"has no checkpoint with a value of searcher.metric"});
  fs::create_directories(folder_ / "checkpoints" / "final");
  write(all_, "checkpoints/final/model.safetensors");
  load_weights(*net, {.file = folder_});
  expect_loaded(net);
}

}  // namespace
}  // namespace dtrain::train
