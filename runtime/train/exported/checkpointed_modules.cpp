#include "exported/runner.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fnmatch.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::exported {
namespace {

using Kind = Instruction::Kind;

constexpr std::size_t kMostNamesShown = 8;

// Returns the outermost of `module` and the modules around it that matches a pattern; empty: none matches.
std::string chosen_module(const std::string& module, const std::vector<std::string>& patterns) {
  for (std::size_t end = module.find('.');; end = module.find('.', end + 1)) {
    const std::string outer = module.substr(0, end);
    const auto matches = [&](const std::string& pattern) { return fnmatch(pattern.c_str(), outer.c_str(), 0) == 0; };
    if (!outer.empty() && std::any_of(patterns.begin(), patterns.end(), matches)) return outer;
    if (end == std::string::npos) return {};
  }
}

template <typename Use>
void for_each_result(const Instruction& instruction, Use use) {
  for (const Result& result : instruction.results) {
    if (result.value != kNoValue) use(result.value);
    for (const Value value : result.values) {
      if (value != kNoValue) use(value);
    }
  }
}

// Finds the instructions of the chosen modules. A region that begins in a part ends in the same part.
class PartFinder {
 public:
  PartFinder(const Program& program, const std::vector<std::string>& patterns)
      : program_(program), patterns_(patterns) {}

  std::vector<CheckpointedPart> find() {
    const auto& instructions = program_.instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const std::string module = chosen_module(instructions[i].module, patterns_);
      const bool ends_outer_region = instructions[i].kind == Kind::kEndRegion && open_.empty();
      if (module != part_.module || ends_outer_region) close(i);
      if (module.empty() || ends_outer_region) continue;
      if (part_.module.empty()) {
        part_.module = module;
        part_.first = i;
      }
      if (instructions[i].kind == Kind::kSetGrad || instructions[i].kind == Kind::kAutocast) open_.push_back(i);
      if (instructions[i].kind == Kind::kEndRegion) open_.pop_back();
    }
    close(instructions.size());
    return std::move(parts_);
  }

 private:
  void close(std::size_t end) {
    CheckpointedPart part = std::exchange(part_, {});
    part.last = open_.empty() ? end : open_.front();
    open_.clear();
    if (part.module.empty()) return;
    const auto begin = program_.instructions.begin();
    const auto operators =
        std::count_if(begin + static_cast<std::ptrdiff_t>(part.first), begin + static_cast<std::ptrdiff_t>(part.last),
                      [](const Instruction& i) { return i.kind == Kind::kOperator; });
    if (operators >= 2) parts_.push_back(std::move(part));
  }

  const Program& program_;
  const std::vector<std::string>& patterns_;
  CheckpointedPart part_;          // the part under construction
  std::vector<std::size_t> open_;  // the regions that have begun in part_
  std::vector<CheckpointedPart> parts_;
};

[[noreturn]] void refuse_no_part(const Program& program, const std::string& patterns, const std::string& key) {
  std::set<std::string> modules;
  for (const auto& [name, class_name] : program.classes) {
    if (!name.empty()) modules.insert(name);
  }
  std::vector<std::string> shown;
  for (const std::string& module : modules) {
    if (shown.size() < kMostNamesShown) shown.push_back(module);
  }
  throw ConfigError(key + ": no module with two operators or more matches \"" + patterns + "\"",
                    modules.empty()
                        ? "the file does not say which modules the model had: leave the key out"
                        : "the modules are " + join(shown, ", ") + (modules.size() > shown.size() ? ", …" : "") +
                              "; dtrain model inspect shows the file");
}

void connect(const Program& program, std::vector<CheckpointedPart>& parts, const std::string& key) {
  constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  std::vector<std::size_t> made(program.values, kNever), last_used(program.values, 0);
  std::vector<bool> is_stored(program.values, false);
  const std::size_t end = program.instructions.size();
  for (const Stored& stored : program.stored) is_stored[index(stored.value)] = true;
  for (std::size_t i = 0; i < end; ++i) {
    for_each_operand(program.instructions[i], [&](const Operand& operand) { last_used[index(operand.value)] = i; });
    for_each_result(program.instructions[i], [&](Value value) { made[index(value)] = i; });
  }
  for (const Output& output : program.outputs) {
    if (output.value != kNoValue) last_used[index(output.value)] = end;
  }
  for (const auto& update : program.buffer_updates) last_used[index(update.value)] = end;
  for (CheckpointedPart& part : parts) {
    std::set<Value> inputs;
    for (std::size_t i = part.first; i < part.last; ++i) {
      const Instruction& instruction = program.instructions[i];
      const auto is_input = [&](Value value) {
        return !is_stored[index(value)] && (made[index(value)] == kNever || made[index(value)] < part.first);
      };
      for_each_operand(instruction, [&](const Operand& operand) {
        if (is_input(operand.value)) inputs.insert(operand.value);
      });
      for_each_result(instruction, [&](Value value) {
        if (last_used[index(value)] >= part.last) part.outputs.push_back(value);
      });
      if (instruction.kind != Kind::kOperator) continue;
      const auto& arguments = instruction.op->schema().arguments();
      for (std::size_t k = 0; k < instruction.operands.size() && k < arguments.size(); ++k) {
        const Value value = instruction.operands[k].value;
        const bool writes = arguments[k].alias_info() && arguments[k].alias_info()->isWrite();
        if (!writes || value == kNoValue || !is_input(value)) continue;
        throw ConfigError(
            key + ": the module " + part.module + " writes its input in place (" + instruction.target + ")",
            "it is computed again from its input in backward: choose a module around it, or let it use "
            "an operation that leaves its input as it is");
      }
    }
    part.inputs.assign(inputs.begin(), inputs.end());
    for (const Value value : part.inputs) {
      if (last_used[index(value)] < part.last) part.last_used.push_back(value);
    }
  }
}

}  // namespace

std::vector<CheckpointedPart> checkpointed_parts(const Program& program, const std::string& patterns,
                                                 const std::string& key) {
  const std::vector<std::string> all = split(patterns, '|');
  std::vector<CheckpointedPart> parts = PartFinder(program, all).find();
  if (parts.empty()) refuse_no_part(program, patterns, key);
  connect(program, parts, key);
  return parts;
}

}  // namespace dtrain::exported
