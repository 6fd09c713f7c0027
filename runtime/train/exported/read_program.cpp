// Values are released after the last instruction that uses them, as Python releases a tensor with its last variable.
// Parameters, buffers and constants stay.
#include "exported/program.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "exported/evaluation_mode.h"
#include "exported/graph_builder.h"
#include "exported/model_json.h"
#include "exported/weights.h"

namespace dtrain::exported {

namespace {

// Sets Operand::last_use, and results that nothing uses to kNoValue.
void mark_last_uses(Program& program) {
  std::vector<bool> used_later(program.values, false);
  const auto keep = [&](Value value) {
    if (value != kNoValue) used_later[index(value)] = true;
  };
  for (const Stored& stored : program.stored) keep(stored.value);
  for (const Output& output : program.outputs) keep(output.value);
  for (const auto& update : program.buffer_updates) keep(update.value);
  const auto drop_unused = [&](Value& value) {
    if (value != kNoValue && !used_later[index(value)]) value = kNoValue;
  };
  const auto use = [&](Operand& operand) {
    if (operand.value == kNoValue) return;
    operand.last_use = !used_later[index(operand.value)];
    keep(operand.value);
  };
  for (auto instruction = program.instructions.rbegin(); instruction != program.instructions.rend(); ++instruction) {
    for (Result& result : instruction->results) {
      drop_unused(result.value);
      for (Value& value : result.values) drop_unused(value);
    }
    for (auto operand = instruction->operands.rbegin(); operand != instruction->operands.rend(); ++operand) {
      use(*operand);
      for (auto item = operand->items.rbegin(); item != operand->items.rend(); ++item) use(*item);
    }
  }
}

constexpr std::int64_t kSchemaMajor = 8;
constexpr std::size_t kLongestModel = 256u << 20;  // the text of a graph of 10,000 nodes has 50 MB
constexpr std::size_t kMostGuards = 10'000;

Json read_model(const Archive& archive) {
  const std::string record = "models/" + archive.program() + ".json";
  try {
    Json json = parse_json(archive.text(record, kLongestModel));
    if (!json.is_object()) throw Error("is no JSON object");
    return json;
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    archive.fail("has a program that " + std::string(error.what()));
  }
}

// Reads a program from the model's JSON: signature, structure and graph.
class ProgramReader {
 public:
  explicit ProgramReader(const Json& model)
      : model_(model),
        graph_(model.at("graph_module").at("graph")),
        signature_(model.at("graph_module").at("signature")),
        builder_(program_) {}

  Program read() {
    read_named_tuples();
    read_inputs();
    builder_.add_nodes(graph_);
    read_outputs();
    read_constraints();
    program_.suspected_backward = builder_.lost_backward().suspects();
    if (const auto version = model_.find("torch_version"); version != model_.end() && version->is_string())
      program_.torch_version = version->get<std::string>();
    return std::move(program_);
  }
  const std::map<std::string, std::string>& unsupported() const { return builder_.unsupported(); }
  std::optional<LostBackward::Problem> lost_backward() const { return builder_.lost_backward().problem(); }
  std::string refused;  // the first input or output that is not supported; empty: none
  std::string remedy;

 private:
  void read_named_tuples() {
    const auto fields = model_["graph_module"].find("treespec_namedtuple_fields");
    if (fields == model_["graph_module"].end() || !fields->is_object()) return;
    for (const auto& [type, definition] : fields->items()) {
      for (const Json& name : definition.at("field_names")) named_tuples_[type].push_back(name.get<std::string>());
    }
  }

  const Json& call_signature() const {
    for (const Json& entry : model_.at("graph_module").at("module_call_graph")) {
      if (entry.at("fqn") == "" && entry.at("signature").is_object()) return entry.at("signature");
    }
    throw Error("it does not say how forward() is called");
  }

  void refuse(const std::string& what, const std::string& what_to_do) {
    if (!refused.empty()) return;
    refused = what;
    remedy = what_to_do;
  }

  void read_inputs() {
    const Json& call = call_signature();
    std::vector<std::string> arguments;
    if (const auto names = call.find("forward_arg_names"); names != call.end() && names->is_array()) {
      for (const Json& name : *names) arguments.push_back(name.get<std::string>());
    }
    const std::vector<std::string> names = input_names(call.at("in_spec").get<std::string>(), arguments, named_tuples_);
    std::size_t next = 0;
    for (const Json& spec : signature_.at("input_specs")) {
      if (!spec.is_object() || spec.size() != 1) throw Error("its signature is damaged");
      const std::string& kind = spec.begin().key();
      const Json& value = spec.begin().value();
      if (kind == "user_input" || kind == "constant_input") {
        if (next >= names.size()) throw Error("it has more inputs than the structure of its inputs");
        const std::string& name = names[next++];
        if (kind == "user_input") add_input(name, value.at("arg"));
      } else if (kind == "parameter") {
        add_stored(Stored::Kind::kParameter, value, "parameter_name", true);
      } else if (kind == "buffer") {
        add_stored(Stored::Kind::kBuffer, value, "buffer_name", value.at("persistent").get<bool>());
      } else if (kind == "tensor_constant") {
        add_stored(Stored::Kind::kConstant, value, "tensor_constant_name", false);
      } else {
        refuse("an input of kind " + kind, "export a model whose forward() takes tensors");
      }
    }
  }

  void add_stored(Stored::Kind kind, const Json& spec, const char* key, bool persistent) {
    const Value value = builder_.define(spec.at("arg").at("name").get<std::string>());
    program_.stored.push_back({kind, spec.at(key).get<std::string>(), value, persistent});
  }

  void add_input(const std::string& name, const Json& argument) {
    if (argument.contains("as_none")) return;
    if (!argument.contains("as_tensor")) {
      const std::string kind = argument.is_object() && !argument.empty() ? argument.begin().key() : "as_nothing";
      if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_custom_obj") {
        refuse("the input '" + name + "', which is a " + (kind == "as_custom_obj" ? "custom object" : "number"),
               "let forward() take tensors alone, and export with a fixed value for the others");
      }
      return;  // the graph's nodes contain constants
    }
    const auto value_name = argument["as_tensor"].at("name").get<std::string>();
    Input input{name, path_of(name), builder_.define(value_name)};
    const Json& meta = tensor_meta(value_name);
    builder_.set_device_type(meta.at("device").at("type").get<std::string>());
    input.type = scalar_type_of(meta.at("dtype").get<std::int64_t>());
    for (const Json& size : meta.at("sizes")) input.shape.push_back(dimension_of(size));
    program_.inputs.push_back(std::move(input));
  }

  const Json& tensor_meta(const std::string& value) const {
    const Json& values = graph_.at("tensor_values");
    const auto found = values.find(value);
    if (found == values.end()) throw Error("it does not say which shape its input '" + value + "' has");
    return *found;
  }

  static Dimension dimension_of(const Json& size) {
    if (size.contains("as_int")) return size["as_int"].get<std::int64_t>();
    const auto text = size.at("as_expr").at("expr_str").get<std::string>();
    const auto expression = Expression::parse(text);
    if (!expression) throw Error("it has a size that cannot be read: " + text.substr(0, 200));
    return *expression;
  }

  // Returns the name of an input in guards. A part of digits alone counts as an index: "batch.0" is L['batch'][0].
  static std::string path_of(const std::string& name) {
    std::string path;
    for (const std::string& part : split(name, '.')) {
      const bool index = !path.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      path += index ? "[" + part + "]" : (path.empty() ? "L['" : "['") + part + "']";
    }
    return path;
  }

  void read_outputs() {
    const std::vector<std::string> names =
        leaf_names(call_signature().at("out_spec").get<std::string>(), named_tuples_);
    std::size_t next = 0;
    for (const Json& spec : signature_.at("output_specs")) {
      if (!spec.is_object() || spec.size() != 1) throw Error("its signature is damaged");
      const std::string& kind = spec.begin().key();
      const Json& value = spec.begin().value();
      if (kind == "user_output" || kind == "loss_output") {
        if (next >= names.size()) throw Error("it has more outputs than the structure of its outputs");
        add_output(names[next++], kind == "user_output" ? value.at("arg") : Json{{"as_tensor", value.at("arg")}});
      } else if (kind == "buffer_mutation") {
        add_buffer_update(value);
      } else if (kind == "user_input_mutation") {
        refuse("it writes into its input '" + value.at("user_input_name").get<std::string>() + "'",
               "let forward() begin with a copy: x = x.clone()");
      } else if (kind == "parameter_mutation") {
        refuse("it writes into its parameter '" + value.at("parameter_name").get<std::string>() + "'",
               "make it a buffer, or change it outside forward()");
      } else if (kind != "token") {
        refuse("an output of kind " + kind, "export the forward pass alone, in train mode");
      }
    }
  }

  void add_output(const std::string& name, const Json& argument) {
    Output output{name};
    output.is_tensor = argument.contains("as_tensor");
    if (output.is_tensor) output.value = builder_.find(argument["as_tensor"].at("name").get<std::string>());
    program_.outputs.push_back(std::move(output));
  }

  void add_buffer_update(const Json& spec) {
    const auto name = spec.at("buffer_name").get<std::string>();
    const auto buffer = std::find_if(program_.stored.begin(), program_.stored.end(), [&](const Stored& stored) {
      return stored.kind == Stored::Kind::kBuffer && stored.name == name;
    });
    if (buffer == program_.stored.end()) throw Error("it changes a buffer '" + name + "' that it does not have");
    buffer->changed = true;
    program_.buffer_updates.push_back(
        {buffer->value, builder_.find(spec.at("arg").at("name").get<std::string>()), name});
  }

  void read_constraints() {
    if (const auto ranges = model_.find("range_constraints"); ranges != model_.end() && ranges->is_object()) {
      for (const auto& [symbol, range] : ranges->items()) {
        Range& own = program_.ranges[symbol];
        if (range.at("min_val").is_number_integer()) own.least = range.at("min_val").template get<std::int64_t>();
        if (range.at("max_val").is_number_integer()) own.most = range.at("max_val").template get<std::int64_t>();
      }
    }
    const auto guards = model_.find("guards_code");
    if (guards == model_.end() || !guards->is_array()) return;
    if (guards->size() > kMostGuards) throw Error("it has " + std::to_string(guards->size()) + " guards");
    for (const Json& guard : *guards) {
      const auto text = guard.get<std::string>();
      auto condition = Expression::parse(text);
      if (condition) {
        program_.guards.push_back({text, std::move(*condition)});
      } else {
        program_.unread_guards.push_back(text);
      }
    }
  }

  const Json& model_;
  const Json& graph_;
  const Json& signature_;
  Program program_;
  GraphBuilder builder_;
  NamedTuples named_tuples_;
};

void check_schema(const Archive& archive, const Json& model, std::pair<std::int64_t, std::int64_t>& schema) {
  schema = {model.at("schema_version").at("major").get<std::int64_t>(),
            model.at("schema_version").at("minor").get<std::int64_t>()};
  if (schema.first == kSchemaMajor) return;
  archive.fail("has version " + std::to_string(schema.first) +
                   " of torch.export's format, and this dtrain reads version " + std::to_string(kSchemaMajor),
               schema.first < kSchemaMajor
                   ? "load it in Python with torch.export.load() of a newer PyTorch, and save it again"
                   : "export it with an older PyTorch, or use a newer dtrain");
}

// run_decompositions() makes a program for inference: it lacks detach() and torch.no_grad(), which changes gradients,
// and its batch norm has no derivative.
void refuse_decomposed(const Archive& archive, const Json& model) {
  const auto verifiers = model.find("verifiers");
  if (verifiers == model.end() || !verifiers->is_array() || verifiers->empty()) return;
  if (std::find(verifiers->begin(), verifiers->end(), "TRAINING") != verifiers->end()) return;
  archive.fail(
      "has gone through run_decompositions(), which leaves out detach() and torch.no_grad() and changes batch "
      "norm, so that its gradients are not those of the model",
      "save what torch.export.export() of PyTorch 2.8 or later returns, without run_decompositions()");
}

void refuse_unsupported(const Archive& archive, const ProgramReader& reader) {
  if (!reader.unsupported().empty()) {
    std::vector<std::string> lines;
    for (const auto& [what, remedy] : reader.unsupported()) {
      if (lines.size() < 10) lines.push_back(what);
    }
    const std::size_t left = reader.unsupported().size() - lines.size();
    archive.fail("uses what dtrain cannot run: " + join(lines, "; ") +
                     (left > 0 ? "; and " + std::to_string(left) + " more" : ""),
                 reader.unsupported().begin()->second);
  }
  if (!reader.refused.empty()) archive.fail("cannot be trained: " + reader.refused, reader.remedy);
}

}  // namespace

Program read_program(const Archive& archive, bool is_trained) {
  const Json model = read_model(archive);
  try {
    std::pair<std::int64_t, std::int64_t> schema;
    check_schema(archive, model, schema);
    ProgramReader reader(model);
    Program program = reader.read();
    refuse_unsupported(archive, reader);
    if (is_trained) {
      refuse_decomposed(archive, model);
      if (const auto lost = reader.lost_backward()) archive.fail(lost->what, lost->remedy);
    }
    program.schema = schema;
    prepare_evaluation(program);
    mark_last_uses(program);
    return program;
  } catch (const ConfigError&) {
    throw;
  } catch (const Json::exception& error) {
    archive.fail("has a damaged program: " + plain_message(error));
  } catch (const c10::Error& error) {
    archive.fail("has a damaged program: " + plain_message(error));
  } catch (const Error& error) {
    archive.fail(std::string("has a damaged program: ") + error.what());
  }
}

}  // namespace dtrain::exported
