#include "share/command_facts.h"

#include "dtrain/base/text.h"

namespace dtrain::cli {
namespace {

ValueKind kind_of(const std::string& name) {
  if (name == "FILE" || name == "EXPERIMENT") return ValueKind::kFile;
  if (name == "DIR") return ValueKind::kFolder;
  return name == "RUN" ? ValueKind::kRun : ValueKind::kText;
}

ValueFacts read_option(const CLI::Option& option) {
  ValueFacts facts{.description = option.get_description(), .required = option.get_required()};
  for (const std::string& name : option.get_snames()) facts.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) facts.names.push_back("--" + name);
  const bool argument = facts.names.empty();
  if (argument) facts.names.push_back(option.get_name(true));
  if (option.get_items_expected_max() == 0) return facts;

  facts.repeatable =
      option.get_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  // "TYPE:{one,two}", "TYPE:{one,two}:MORE CHECKS", "INT:NONNEGATIVE"
  const std::string type = option.get_type_name();
  facts.value_name = type.substr(0, type.find(':'));
  facts.kind =
      kind_of(argument && kind_of(facts.value_name) == ValueKind::kText ? facts.names.front() : facts.value_name);
  const auto open = type.find(":{");
  const auto close = type.find('}');
  if (open != std::string::npos && close != std::string::npos && close > open) {
    facts.kind = ValueKind::kChoice;
    facts.choices = split(type.substr(open + 2, close - open - 2), ',');
  }
  return facts;
}

CommandFacts read_command(const CLI::App& app, std::vector<std::string> path) {
  path.push_back(app.get_name());
  CommandFacts facts{.path = path, .description = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    ValueFacts value = read_option(*option);
    (value.names.front().front() == '-' ? facts.options : facts.arguments).push_back(std::move(value));
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->get_group().empty()) facts.commands.push_back(read_command(*command, path));
  }
  return facts;
}

}  // namespace

CommandFacts read_facts(const CLI::App& app) {
  return read_command(app, {});
}

std::string full_name(const CommandFacts& command) {
  return join(command.path, " ");
}

}  // namespace dtrain::cli
