// Programs of torch.export: what they compute, in both modes, and files that are damaged or hostile. The files are made
// here, as torch.export.save() lays them out; tests/integration/exported_models.py has those that PyTorch wrote.
#include "exported/exported_model.h"

#include <functional>
#include <random>

#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "exported/evaluation_mode.h"
#include "exported/model_json.h"

namespace dtrain::exported {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kFloatNumber = 7;  // of the file's types
constexpr int kLongNumber = 5;

Json sizes(const std::vector<std::int64_t>& values) {
  Json list = Json::array();
  for (const std::int64_t value : values) list.push_back(Json::object({{"as_int", value}}));
  return list;
}

Json tensor(const std::string& name) {
  return Json::parse(R"({"as_tensor": {"name": ")" + name + R"("}})");
}

// y = dropout(linear(x) * 2), a counter that counts, a batch of any size.
Json small_program() {
  Json program = Json::parse(R"json({
    "schema_version": {"major": 8, "minor": 17},
    "torch_version": "2.11.0",
    "range_constraints": {"s0": {"min_val": 3, "max_val": 100}},
    "guards_code": ["L['x'].size()[0] % 2 == 0"],
    "graph_module": {
      "graph": {
        "inputs": [{"as_tensor": {"name": "w"}}, {"as_tensor": {"name": "b"}}, {"as_tensor": {"name": "n"}},
                   {"as_tensor": {"name": "x"}}],
        "outputs": [{"as_tensor": {"name": "y"}}],
        "nodes": [
          {"target": "torch.ops.aten.linear.default",
           "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
                      {"name": "weight", "arg": {"as_tensor": {"name": "w"}}, "kind": 1},
                      {"name": "bias", "arg": {"as_tensor": {"name": "b"}}, "kind": 1}],
           "outputs": [{"as_tensor": {"name": "h"}}],
           "metadata": {"nn_module_stack": "L__self__,,Net;L__self___fc,fc,torch.nn.modules.linear.Linear"}},
          {"target": "torch.ops.aten.add_.Tensor",
           "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "n"}}, "kind": 1},
                      {"name": "other", "arg": {"as_int": 1}, "kind": 1}],
           "outputs": [{"as_tensor": {"name": "counted"}}],
           "metadata": {"nn_module_stack": "L__self__,,Net;L__self___norm,norm,torch.nn.modules.batchnorm.BatchNorm1d"}},
          {"target": "torch.ops.aten.mul.Tensor",
           "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "h"}}, "kind": 1},
                      {"name": "other", "arg": {"as_int": 2}, "kind": 1}],
           "outputs": [{"as_tensor": {"name": "doubled"}}],
           "metadata": {"stack_trace": "File net.py", "from_node": [{"target": ["deep", {"target": 1}]}]}},
          {"target": "torch.ops.aten.dropout.default",
           "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "doubled"}}, "kind": 1},
                      {"name": "p", "arg": {"as_float": 0.5}, "kind": 1},
                      {"name": "train", "arg": {"as_bool": true}, "kind": 1}],
           "outputs": [{"as_tensor": {"name": "y"}}],
           "metadata": {}}
        ],
        "tensor_values": {
          "x": {"dtype": 7,
                "sizes": [{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 4}}},
                          {"as_int": 3}],
                "requires_grad": false, "device": {"type": "cpu", "index": null},
                "strides": [{"as_int": 3}, {"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7}}
      },
      "signature": {
        "input_specs": [
          {"parameter": {"arg": {"name": "w"}, "parameter_name": "fc.weight"}},
          {"parameter": {"arg": {"name": "b"}, "parameter_name": "fc.bias"}},
          {"buffer": {"arg": {"name": "n"}, "buffer_name": "norm.num_batches_tracked", "persistent": true}},
          {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
        "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]
      },
      "module_call_graph": [{"fqn": "", "signature": {
        "inputs": [], "outputs": [],
        "forward_arg_names": ["x"]}}]
    }
  })json");
  const std::string leaf = R"({"type": null, "context": null, "children_spec": []})";
  Json& call = program["graph_module"]["module_call_graph"][0]["signature"];
  call["in_spec"] = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [
      {"type": "builtins.tuple", "context": "null", "children_spec": [)" +
                    leaf + R"(]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}])";
  call["out_spec"] = R"([1, {"type": "builtins.dict", "context": "[\"scores\"]", "children_spec": [)" + leaf + "]}]";
  return program;
}

Json weight(const std::string& path, int type, const std::vector<std::int64_t>& shape,
            const std::vector<std::int64_t>& strides, bool is_parameter) {
  Json entry = Json::parse(R"({"use_pickle": false, "tensor_meta": {"device": {"type": "cpu", "index": null},
                               "storage_offset": {"as_int": 0}, "layout": 7}})");
  entry["path_name"] = path;
  entry["is_param"] = is_parameter;
  entry["tensor_meta"]["dtype"] = type;
  entry["tensor_meta"]["sizes"] = sizes(shape);
  entry["tensor_meta"]["strides"] = sizes(strides);
  entry["tensor_meta"]["requires_grad"] = is_parameter;
  return entry;
}

Json small_weights() {
  Json weights;
  weights["config"]["fc.weight"] = weight("weight_0", kFloatNumber, {2, 3}, {3, 1}, true);
  weights["config"]["fc.bias"] = weight("weight_1", kFloatNumber, {2}, {1}, true);
  weights["config"]["norm.num_batches_tracked"] = weight("weight_2", kLongNumber, {}, {}, false);
  return weights;
}

std::string bytes_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.data_ptr()), values.nbytes()};
}

class ExportedTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const Json& program, const Json& weights = small_weights()) {
    return write_text(program.dump(), weights.dump());
  }
  std::filesystem::path write_text(const std::string& program, const std::string& weights) {
    const auto file = folder_.path() / "model.pt2";
    caffe2::serialize::PyTorchStreamWriter writer(file.string());
    const auto put = [&](const std::string& name, const std::string& content) {
      writer.writeRecord(name, content.data(), content.size());
    };
    put("data/weights/weight_0", bytes_of(weight_));
    put("data/weights/weight_1", bytes_of(bias_));
    put("data/weights/weight_2", bytes_of(at::zeros({}, at::kLong)));
    put("data/weights/model_weights_config.json", weights);
    put("data/constants/model_constants_config.json", R"({"config": {}})");
    put("models/model.json", program);
    put("archive_format", "pt2");
    put("archive_version", "0");
    writer.writeEndOfFile();
    return file;
  }
  // What the ConfigError says, with its remedy.
  std::string refused(const Json& program, const Json& weights = small_weights()) {
    const auto file = write(program, weights);
    try {
      const ExportedModel model(file);
    } catch (const ConfigError& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return "accepted";
  }
  static at::Tensor run(ExportedModel& model, const at::Tensor& x) { return model.forward(std::array{x}).at(0); }
  static std::string failure(ExportedModel& model, const at::Tensor& x) {
    try {
      run(model, x);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return "none";
  }

  const TemporaryFolder folder_;
  const at::Tensor weight_ = at::arange(6, at::kFloat).view({2, 3}), bias_ = at::tensor({0.5f, -1.0f});
};

TEST_F(ExportedTest, ComputesInBothModesAndKeepsItsTensors) {
  ExportedModel model(write(small_program()));
  const at::Tensor x = at::ones({4, 3});
  const at::Tensor expected = 2 * at::linear(x, weight_, bias_);
  model.tree()->eval();
  EXPECT_TRUE(run(model, x).equal(expected));
  const auto buffers = model.tree()->named_buffers();
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<int>(), 0) << "a counter stands still in evaluation";

  model.tree()->train();
  at::manual_seed(3);
  const at::Tensor dropped = run(model, x);
  at::manual_seed(3);
  EXPECT_TRUE(dropped.equal(at::dropout(expected, 0.5, true)));
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<int>(), 1);
  dropped.sum().backward();
  EXPECT_TRUE(model.tree()->named_parameters()["fc.weight"].grad().defined());

  at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.tree()->parameters()) parameter.set_data(parameter.clone() + 1);  // other memory
  model.tree()->eval();
  EXPECT_TRUE(run(model, x).equal(2 * at::linear(x, weight_ + 1, bias_ + 1)));
  EXPECT_EQ(model.program().outputs.at(0).name, "scores");
}

TEST_F(ExportedTest, IsWrittenWithItsWeights) {
  ExportedModel model(write(small_program()));
  {
    at::NoGradGuard no_grad;
    model.tree()->named_parameters()["fc.weight"].copy_(weight_ * 10);
  }
  const auto again = folder_.path() / "again.pt2";
  model.save(again);
  ExportedModel written(again);
  EXPECT_TRUE(written.tree()->named_parameters()["fc.weight"].equal(weight_ * 10));
  EXPECT_TRUE(written.tree()->named_parameters()["fc.bias"].equal(bias_));
}

TEST_F(ExportedTest, ChecksShapes) {
  ExportedModel model(write(small_program()));
  EXPECT_EQ(failure(model, at::ones({6, 3})), "none");
  EXPECT_THAT(failure(model, at::ones({4, 5})),
              HasSubstr("input 'x' is of shape [4, 5], and its dimension 1 was exported as 3 alone"));
  EXPECT_THAT(failure(model, at::ones({4, 5})), HasSubstr("dynamic_shapes"));
  EXPECT_THAT(failure(model, at::ones({102, 3})), HasSubstr("must be 3 to 100"));
  EXPECT_THAT(failure(model, at::ones({5, 3})), HasSubstr("L['x'].size()[0] % 2 == 0, but the shapes are 'x' [5, 3]"));
  EXPECT_THAT(failure(model, at::ones({4, 3}, at::kDouble)), HasSubstr("type float64"));
  EXPECT_THAT(failure(model, at::ones({4})), HasSubstr("2 dimensions"));
}

TEST_F(ExportedTest, RefusesWhatItCannotRunByName) {
  const auto with_target = [](const std::string& target) {
    Json program = small_program();
    program["graph_module"]["graph"]["nodes"][0]["target"] = target;
    return program;
  };
  EXPECT_THAT(refused(with_target("torch.ops.torchvision.nms.default")), HasSubstr("operator torchvision::nms"));
  EXPECT_THAT(refused(with_target("torch.ops.aten.no_such.default")), HasSubstr("aten::no_such"));
  EXPECT_THAT(refused(with_target("torch.ops.aten.from_file.default")), HasSubstr("aten::from_file"));
  EXPECT_THAT(refused(with_target("torch.ops.higher_order.cond")), HasSubstr("torch.where()"));
  EXPECT_THAT(refused(with_target("torch.ops.higher_order.tag_activation_checkpoint")),
              HasSubstr("optimizations.gradient_checkpointing"));
  EXPECT_THAT(refused(with_target("os.system")), HasSubstr("'os.system'"));
  Json old = small_program();
  old["schema_version"]["major"] = 7;
  EXPECT_THAT(refused(old), HasSubstr("has version 7 of torch.export's format"));
  Json pickled = small_weights();
  pickled["config"]["fc.bias"]["use_pickle"] = true;
  EXPECT_THAT(refused(small_program(), pickled), HasSubstr("pickled tensor 'fc.bias'"));
  Json meta_device = small_weights();
  meta_device["config"]["fc.bias"]["tensor_meta"]["device"]["type"] = "meta";
  EXPECT_THAT(refused(small_program(), meta_device), HasSubstr("no values"));
}

TEST_F(ExportedTest, ModulesThatAreComputedAgainAreOnePart) {
  Json program = small_program();
  Json& nodes = program["graph_module"]["graph"]["nodes"];
  for (const std::size_t i : {1, 2}) nodes[i]["metadata"]["nn_module_stack"] = nodes[0]["metadata"]["nn_module_stack"];
  const auto file = write(program);
  ExportedModel plain(file), checkpointed(file);
  int calls = 0;
  const RunCheckpointed twice = [&](const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
    ++calls;
    EXPECT_EQ(inputs.size(), 1U) << "parameters and buffers are no inputs";
    function(inputs);
    return function(inputs);
  };
  checkpointed.checkpoint_modules("none|f*", "a key", twice);
  const at::Tensor x = at::ones({4, 3});
  for (const bool training : {true, false}) {
    plain.tree()->train(training);
    checkpointed.tree()->train(training);
    at::manual_seed(3);
    const at::Tensor expected = run(plain, x);
    at::manual_seed(3);
    EXPECT_TRUE(run(checkpointed, x).equal(expected));
    EXPECT_EQ(calls, 1) << "in training alone";
  }
  const auto refused = [&](const Json& changed, const std::string& patterns) {
    ExportedModel model(write(changed));
    try {
      model.checkpoint_modules(patterns, "a key", twice);
    } catch (const ConfigError& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(program, "norm"), HasSubstr("a key: no module with two operators or more matches \"norm\" | the "
                                                  "modules are fc"));
  nodes[2]["target"] = "torch.ops.aten.mul_.Tensor";
  nodes[2]["inputs"][0]["arg"] = tensor("x");
  EXPECT_THAT(refused(program, "fc"), HasSubstr("the module fc writes its input in place (aten.mul_.Tensor)"));
}

TEST_F(ExportedTest, TheLastLayerIsTakenOff) {
  Json program = small_program();
  Json& nodes = program["graph_module"]["graph"]["nodes"];
  program["graph_module"]["graph"]["outputs"][0] = tensor("h");
  program["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] = tensor("h");
  const Json all = nodes;
  nodes = Json::array({all[1], all[0]});
  const at::Tensor x = at::ones({4, 3});
  ExportedModel model(write(program));
  const auto taken = model.take_last_layer(0, /*least_classes=*/2);
  EXPECT_EQ(taken.why_not, "");
  EXPECT_EQ(taken.name, "fc.weight");
  EXPECT_TRUE(taken.weight.is_same(model.tree()->named_parameters()["fc.weight"]));
  EXPECT_TRUE(taken.bias.is_same(model.tree()->named_parameters()["fc.bias"]));
  for (const bool training : {true, false}) {
    model.tree()->train(training);
    EXPECT_TRUE(run(model, x).equal(x));
  }
  const auto again = folder_.path() / "again.pt2";
  model.save(again);
  ExportedModel written(again);
  EXPECT_TRUE(run(written, x).equal(at::linear(x, weight_, bias_))) << "the file has the whole model";

  const auto why_not = [&](const Json& changed, std::int64_t least_classes = 1) {
    ExportedModel whole(write(changed));
    whole.tree()->eval();
    const at::Tensor expected = run(whole, x);
    const std::string why = whole.take_last_layer(0, least_classes).why_not;
    EXPECT_TRUE(run(whole, x).equal(expected));
    return why;
  };
  EXPECT_EQ(why_not(program, 3), "its last layer has 2 classes, fewer than 3");
  EXPECT_EQ(why_not(small_program()), "its scores are the result of aten.dropout.default, not of a linear layer");
  nodes = Json::array({all[0], all[1]});
  EXPECT_EQ(why_not(program), "operations after its last layer use or change that layer's input");
  nodes = Json::array({all[0], all[2]});
  EXPECT_EQ(why_not(program), "it uses its scores itself");
}

TEST_F(ExportedTest, SaysWhyItCannotBeEvaluated) {
  EXPECT_EQ(ExportedModel(write(small_program())).program().why_no_evaluation, "");
  Json random = small_program();
  Json& node = random["graph_module"]["graph"]["nodes"][2];
  node["target"] = "torch.ops.aten.rand_like.default";
  node["inputs"].erase(1);
  EXPECT_THAT(ExportedModel(write(random)).program().why_no_evaluation, HasSubstr("random numbers (rand_like"));
  Json changed = small_program();
  changed["graph_module"]["signature"]["input_specs"][2]["buffer"]["buffer_name"] = "seen";
  Json weights = small_weights();
  weights["config"]["seen"] = weights["config"]["norm.num_batches_tracked"];
  EXPECT_THAT(ExportedModel(write(changed, weights)).program().why_no_evaluation,
              HasSubstr("changes its buffer 'seen'"));
}

// x[:, :] is x: it is no operator, and has no backward. In a region without gradients nothing is left out.
TEST_F(ExportedTest, WholeViewsAreLeftOut) {
  const Json slice = Json::parse(R"json({"target": "torch.ops.aten.slice.Tensor",
      "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "h"}}, "kind": 1},
                 {"name": "dim", "arg": {"as_int": 0}, "kind": 1}, {"name": "start", "arg": {"as_int": 0}, "kind": 1},
                 {"name": "end", "arg": {"as_int": 9223372036854775807}, "kind": 1}],
      "outputs": [{"as_tensor": {"name": "whole"}}], "metadata": {}})json");
  const auto with = [](Json node) {
    Json program = small_program();
    Json& graph = program["graph_module"]["graph"];
    Json& nodes = graph["nodes"];
    node["outputs"][0] = tensor("whole");
    nodes[2]["inputs"][0]["arg"] = tensor("whole");
    nodes.insert(nodes.begin() + 2, node);
    for (const char* name : {"h", "whole"}) {
      graph["tensor_values"][name] = graph["tensor_values"]["x"];
      graph["tensor_values"][name]["sizes"][1]["as_int"] = 2;
    }
    return program;
  };
  const at::Tensor x = at::ones({4, 3});
  const auto left = [&](const Json& program) {
    ExportedModel model(write(program));
    model.tree()->eval();
    EXPECT_TRUE(run(model, x).requires_grad());
    return model.program().instructions.size();
  };
  const std::size_t plain = small_program()["graph_module"]["graph"]["nodes"].size();
  EXPECT_EQ(left(with(slice)), plain);
  Json by_size = slice, part = slice, view = slice;
  by_size["inputs"][1]["arg"]["as_int"] = 1;
  by_size["inputs"][3]["arg"]["as_int"] = 2;
  EXPECT_EQ(left(with(by_size)), plain) << "x[:, :2] of two columns";
  part["inputs"][3]["arg"]["as_int"] = 100;  // of as many as 100 samples, where the file does not know how many
  EXPECT_EQ(left(with(part)), plain + 1);
  view["target"] = "torch.ops.aten.view.default";
  view["inputs"] = Json::array({slice["inputs"][0], {{"name", "size"}, {"arg", {{"as_ints", {-1, 2}}}}, {"kind", 1}}});
  EXPECT_EQ(left(with(view)), plain);
  Json reshaped = with(view);
  reshaped["graph_module"]["graph"]["tensor_values"]["whole"]["sizes"][0] = {{"as_int", 4}};
  EXPECT_EQ(left(reshaped), plain + 1) << "of other sizes, as far as the file tells";

  Json alone = small_program();
  Json& graph = alone["graph_module"]["graph"];
  Json inner = {{"inputs", Json::array({tensor("h")})},
                {"outputs", Json::array({tensor("whole")})},
                {"nodes", Json::array({slice})},
                {"tensor_values", Json::object()}};
  Json region = Json::parse(R"json({"target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
      "inputs": [{"name": "", "arg": {"as_bool": false}, "kind": 1}, {"name": "", "arg": {}, "kind": 1},
                 {"name": "", "arg": {"as_tensor": {"name": "h"}}, "kind": 1}],
      "outputs": [{"as_tensor": {"name": "cut"}}], "metadata": {}})json");
  region["inputs"][1]["arg"] = {{"as_graph", {{"name", "inner"}, {"graph", inner}}}};
  graph["nodes"][2]["inputs"][0]["arg"] = tensor("cut");
  graph["nodes"].insert(graph["nodes"].begin() + 2, region);
  const ExportedModel model(write(alone));
  EXPECT_EQ(model.program().instructions.size(), plain + 3) << "the region's begin and end, and the slice";
}

TEST_F(ExportedTest, ChecksNumbersOfSamples) {
  const auto failure_of = [](const ExportedModel& model, std::int64_t samples) -> std::string {
    try {
      model.check_samples(samples);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return "none";
  };
  const ExportedModel any(write(small_program()));
  EXPECT_EQ(failure_of(any, 6), "none");
  EXPECT_THAT(failure_of(any, 102), HasSubstr("its input 'x' was exported for batches of 3 to 100 samples"));
  EXPECT_THAT(failure_of(any, 7), HasSubstr("L['x'].size()[0] % 2 == 0"));
  Json fixed = small_program();
  Json& size = fixed["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0];
  size = {{"as_int", 8}};
  EXPECT_EQ(failure_of(ExportedModel(write(fixed)), 8), "none");
  EXPECT_THAT(failure_of(ExportedModel(write(fixed)), 5),
              AllOf(HasSubstr("'x' was exported for batches of 8 samples alone"), HasSubstr("dynamic_shapes")));
  size = {{"as_int", 1}};
  ExportedModel one(write(fixed));
  EXPECT_THAT(failure_of(one, 8), HasSubstr("with an example of 2 samples or more"));
  EXPECT_THAT(failure(one, at::ones({4, 3})), HasSubstr("with an example of 2 samples or more"));
}

TEST_F(ExportedTest, WhatItsAuthorWroteForBothModesStays) {
  Json program = small_program();
  Json& dropout = program["graph_module"]["graph"]["nodes"][3];
  const auto drops = [&](const std::string& line, const std::string& modules = "L__self__,,Net") {
    dropout["metadata"] = {{"nn_module_stack", modules},
                           {"stack_trace", "File \"net.py\", line 7, in forward\n    " + line}};
    ExportedModel model(write(program));
    model.tree()->eval();
    const bool always = run(model, at::ones({100, 3})).eq(0).any().item<bool>();
    EXPECT_EQ(is_in_evaluation_mode(model.program()), false);
    EXPECT_EQ(modal_operators(model.program()).empty(), always);
    return always;
  };
  EXPECT_TRUE(drops("return F.dropout(x, 0.5, training=True)"));
  EXPECT_TRUE(drops("return self.out(F.dropout(torch.relu(self.fc(x)), p=0.5))"));
  EXPECT_TRUE(drops("x = nn.functional.dropout(x, 0.5, True) + F.dropout(y)"));
  EXPECT_FALSE(drops("return F.dropout(x, 0.5, self.training)"));
  EXPECT_FALSE(drops("return F.dropout(x, training=self.training)"));
  EXPECT_FALSE(drops("return F.dropout(x) + F.dropout(y, 0.5, self.training)"));
  EXPECT_FALSE(drops("return F.dropout("));
  EXPECT_FALSE(drops("return self.dropout(x)"));
  EXPECT_FALSE(drops("return F.alpha_dropout(x)"));
  EXPECT_TRUE(drops("return F.dropout(x, self.p)", "L__self__,,Net;a,d,net.MonteCarloDropout"));
  EXPECT_FALSE(drops("return F.dropout(self.d(x), 0.5)", "L__self__,,Net;a,d,torch.nn.modules.dropout.Dropout"));
}

TEST_F(ExportedTest, FrozenModulesAreNamed) {
  Json program = small_program();
  Json& nodes = program["graph_module"]["graph"]["nodes"];
  Json frozen = nodes[3];
  frozen["inputs"][0]["arg"] = tensor("h");
  frozen["inputs"][2]["arg"]["as_bool"] = false;
  frozen["outputs"][0] = tensor("kept");
  frozen["metadata"]["nn_module_stack"] = "L__self__,,Net;a,head.drop,torch.nn.modules.dropout.Dropout";
  nodes[2]["inputs"][0]["arg"] = tensor("kept");
  nodes.insert(nodes.begin() + 2, frozen);
  const auto file = write(program);
  EXPECT_FALSE(is_in_evaluation_mode(ExportedModel(file).program()));
  EXPECT_THAT(modules_in_evaluation(ExportedModel(file).program()), testing::ElementsAre("head.drop (Dropout)"));
  nodes[4]["inputs"][2]["arg"]["as_bool"] = false;
  EXPECT_TRUE(is_in_evaluation_mode(ExportedModel(write(program)).program()));
}

TEST_F(ExportedTest, OtherFilesAreNamed) {
  const auto file = folder_.path() / "other.pt2";
  const auto failure_of = [&]() -> std::string {
    try {
      const ExportedModel model(file);
    } catch (const ConfigError& error) {
      return std::string(error.what()) + " | " + error.remedy();
    }
    return "none";
  };
  const auto archive_with = [&](const std::string& record) {
    caffe2::serialize::PyTorchStreamWriter writer(file.string());
    writer.writeRecord(record, "x", 1);
    if (record != "data.pkl") writer.writeRecord("data.pkl", "x", 1);
    writer.writeEndOfFile();
    return failure_of();
  };
  EXPECT_THAT(archive_with("constants.pkl"), AllOf(HasSubstr("is TorchScript"), HasSubstr("rename it to *.pt")));
  EXPECT_THAT(archive_with("data.pkl"), HasSubstr("is a file of torch.save(), which only Python reads"));
  const std::uint64_t header = 2;
  write_file_atomic(file, std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + "{}");
  EXPECT_THAT(failure_of(), HasSubstr("is a file of safetensors, which has weights and no model"));
  Json decomposed = small_program();
  decomposed["verifiers"] = {"ATEN"};
  EXPECT_THAT(refused(decomposed), HasSubstr("has gone through run_decompositions()"));
}

TEST_F(ExportedTest, RefusesHostileFiles) {
  const auto with = [](const std::string& key, const Json& value) {
    Json weights = small_weights();
    weights["config"]["fc.weight"]["tensor_meta"][key] = value;
    return weights;
  };
  EXPECT_THAT(refused(small_program(), with("storage_offset", {{"as_int", -1}})), HasSubstr("offset -1"));
  EXPECT_THAT(refused(small_program(), with("storage_offset", {{"as_int", 1}})), HasSubstr("ends behind its record"));
  EXPECT_THAT(refused(small_program(), with("sizes", sizes({2, 4}))), HasSubstr("ends behind its record"));
  EXPECT_THAT(refused(small_program(), with("sizes", sizes({std::int64_t{1} << 62, std::int64_t{1} << 62}))),
              HasSubstr("larger than memory"));
  EXPECT_THAT(refused(small_program(), with("strides", sizes({3}))), HasSubstr("not as many strides"));
  EXPECT_THAT(refused(small_program(), with("dtype", 99)), HasSubstr("unknown type, number 99"));
  Json outside = small_weights();
  outside["config"]["fc.weight"]["path_name"] = "../models/model.json";
  EXPECT_THAT(refused(small_program(), outside), HasSubstr("in a record named"));
  Json cycle = small_program();
  cycle["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = tensor("y");
  EXPECT_THAT(refused(cycle), HasSubstr("uses the value 'y' before it is computed"));
  Json twice = small_program();
  twice["graph_module"]["graph"]["nodes"][2]["outputs"][0] = tensor("h");
  EXPECT_THAT(refused(twice), HasSubstr("two values are named 'h'"));
}

TEST_F(ExportedTest, ManyNodesAndDeepNestingAreErrors) {
  // Text, for a Json of so many nodes would take longer to make than to read.
  const std::string program = small_program().dump();
  const std::string mark = R"("nodes":[)";
  const auto at = program.find(mark) + mark.size();
  std::string many;
  for (int i = 0; i < 1'000'000; ++i) {
    many += R"({"target":"_operator.add","inputs":[{"arg":{"as_int":1}},{"arg":{"as_int":1}}],"outputs":[]},)";
  }
  const auto of = [&](const std::string& text) {
    try {
      const ExportedModel model(write_text(text, small_weights().dump()));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(of(program.substr(0, at) + many + program.substr(at)), HasSubstr("more than 100000 operators"));
  std::string wide = "[0";
  for (int i = 0; i < 12'000'000; ++i) wide += ",0";
  EXPECT_THAT(of(wide + "]"), HasSubstr("more than 12000000 values"));
  std::string deep(1'000'000, '[');
  EXPECT_THAT(of(deep), HasSubstr("nested too deeply"));
  deep += std::string(1'000'000, ']');
  EXPECT_THAT(of(deep), HasSubstr("nested too deeply"));
}

// Every change of a byte, or of a part of the text, either leaves a file that is read, or is a ConfigError.
TEST_F(ExportedTest, ChangedFilesAreReadOrRefused) {
  const std::string program = small_program().dump(), weights = small_weights().dump();
  const std::string archive = read_file(write_text(program, weights));
  std::mt19937 random(7);
  const auto below = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most - 1)(random); };
  int accepted = 0, rejected = 0;
  const auto check = [&](const std::filesystem::path& file) {
    try {
      const ExportedModel model(file);
      ++accepted;
    } catch (const ConfigError& error) {
      EXPECT_FALSE(error.remedy().empty()) << error.what();
      ++rejected;
    }
  };
  const auto changed = [&](std::string text) {
    static const std::vector<std::string> kParts{
        "-1", "9223372036854775807", "null", "[]", "{}", "\"\"", "true", "1e999", "as_int"};
    for (std::size_t count = 1 + below(2); count > 0; --count) {
      const std::size_t at = below(text.size()), length = std::min(below(12), text.size() - at);
      text.replace(at, length,
                   below(2) == 0 ? kParts[below(kParts.size())] : text.substr(below(text.size()), below(30)));
    }
    return text;
  };
  // Whole values of the JSON, so that what is read goes deeper than its syntax.
  const auto with_other_value = [&](Json json) {
    std::vector<Json*> places;
    const std::function<void(Json&)> collect = [&](Json& value) {
      places.push_back(&value);
      if (value.is_structured()) {
        for (Json& child : value) collect(child);
      }
    };
    collect(json);
    const Json copy = *places[below(places.size())];
    static const std::vector<Json> kValues{
        Json(), Json(-1), Json(std::int64_t{1} << 62), Json("x"), Json::array(), Json::object(), Json(true)};
    *places[1 + below(places.size() - 1)] = below(2) == 0 ? copy : kValues[below(kValues.size())];
    return json.dump();
  };
  for (int i = 0; i < 1500; ++i) {
    check(write_text(with_other_value(small_program()), weights));
    check(write_text(program, with_other_value(small_weights())));
    if (i % 3 == 0) check(write_text(changed(program), changed(weights)));
  }
  const auto file = folder_.path() / "changed.pt2";
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = archive;
    for (std::size_t count = 1 + below(4); count > 0; --count)
      bytes[below(bytes.size())] = static_cast<char>(below(256));
    if (i % 4 == 0) bytes.resize(below(bytes.size()));
    write_file_atomic(file, bytes);
    check(file);
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(rejected, 1000);
}

TEST(ExportedExpressions, AreComputedAsInPython) {
  const auto value = [](const std::string& text) -> std::optional<std::int64_t> {
    const auto expression = Expression::parse(text);
    if (!expression) return -999;
    return expression->value([](const std::string& name) -> std::optional<std::int64_t> {
      if (name == "s0") return 7;
      if (name == "L['x'].size()[1]") return 3;
      return std::nullopt;
    });
  };
  EXPECT_EQ(value("Add(Integer(2), Mul(Integer(-3), Symbol('s0', positive=True, integer=True)))"), -19);
  EXPECT_EQ(value("FloorDiv(Symbol('s0'), Integer(2))"), 3);
  EXPECT_EQ(value("-7 // 2"), -4);
  EXPECT_EQ(value("-7 % 3"), 2);
  EXPECT_EQ(value("2 + 3 * 4 - 1 == 13 and not 2 > 3"), 1);
  EXPECT_EQ(value("L['x'].size()[1] <= 2 or L[\"x\"].size()[1] == 3"), 1);
  EXPECT_EQ(value("2 ** 10"), 1024);
  EXPECT_EQ(value("s1 + 1"), std::nullopt);
  EXPECT_EQ(value("9223372036854775807 + 1"), std::nullopt);
  EXPECT_EQ(value("1 // 0"), std::nullopt);
  for (const char* wrong : {"", "1 +", "(1", "f(1)", "L['x", "1 2", "Symbol(", "__import__('os')"})
    EXPECT_FALSE(Expression::parse(wrong)) << wrong;
  EXPECT_FALSE(Expression::parse(std::string(50'000, '(')));
  EXPECT_FALSE(Expression::parse("1" + std::string(5'000, ' ') + std::string(20'000, '-')));
}

TEST(ExportedNames, AreThoseOfTheStructure) {
  const std::string named = R"([1, {"type": "T", "context": "T", "children_spec": [
      {"type": null, "context": null, "children_spec": []},
      {"type": "builtins.tuple", "context": "null", "children_spec": [
        {"type": null, "context": null, "children_spec": []}, {"type": null, "context": null, "children_spec": []}]}]}])";
  EXPECT_THAT(leaf_names(named, {{"T", {"logits", "state"}}}), testing::ElementsAre("logits", "state.0", "state.1"));
  EXPECT_THAT(leaf_names(named, {}), testing::ElementsAre("0", "1.0", "1.1"));
  EXPECT_THAT(leaf_names(R"([1, {"type": null, "context": null, "children_spec": []}])", {}), testing::ElementsAre(""));
  EXPECT_THROW(leaf_names("[2, {}]", {}), Error);
}

}  // namespace
}  // namespace dtrain::exported
