// dtrain.1 in the man macros of troff.
#include <cstdio>

#include "commands.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/libtorch.h"
#include "exit_codes.h"
#include "share/command_facts.h"

namespace dtrain::cli {
namespace {

struct Entry {
  const char* name;
  const char* text;
};

constexpr Entry kFiles[] = {
    {"runs/NNNN-NAME/",
     "A run: experiment.yaml, plan.json, events.jsonl, metrics.jsonl, logs/, profile/, checkpoints/."},
    {"PREFIX/lib/dtrain/libtorch, ~/.local/share/dtrain/libtorch", "Where dtrain-get-libtorch puts libtorch."},
    {"~/.local/state/dtrain/ledger.db", "Which tasks hold which slots, which tasks wait, and how the others ended."},
    {"PREFIX/share/dtrain/", "Examples: configs/ and examples/."},
};

// Returns text that troff prints unchanged; dashes stay dashes, so that options can be copied.
std::string escaped(const std::string& text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    line_begins = c == '\n';
  }
  return result;
}

std::string bold(const std::string& text) {
  return "\\fB" + escaped(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + escaped(text) + "\\fR";
}

// Returns filled paragraphs; indented lines stay as they are.
std::string paragraphs(const std::string& text) {
  std::string result;
  bool verbatim = false;
  for (const std::string& line : split(text, '\n')) {
    const bool indented = line.rfind("  ", 0) == 0;
    if (indented != verbatim) result += indented ? ".PP\n.nf\n" : ".fi\n";
    verbatim = indented;
    result += line.empty() ? ".PP\n" : escaped(line) + "\n";
  }
  return result + (verbatim ? ".fi\n" : "");
}

std::string tagged(const std::string& tag, const std::string& text) {
  return ".TP\n" + tag + "\n" + escaped(text) + "\n";
}

std::string option_tag(const ValueFacts& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    const std::string value = option.kind == ValueKind::kChoice ? join(option.choices, "|") : option.value_name;
    names.push_back(bold(name) + (value.empty() ? "" : " " + italic(value)));
  }
  return join(names, ", ");
}

std::string description_of(const ValueFacts& value) {
  if (value.kind != ValueKind::kChoice || value.names.front().front() == '-') return value.description;
  return value.description + ": " + join(value.choices, " or ");
}

// Adds a heading, arguments, options and the rest of --help for each command that does something.
void add_command(const CommandFacts& command, std::string* page) {
  for (const CommandFacts& child : command.commands) add_command(child, page);
  if (!command.commands.empty()) return;
  std::string usage = bold(full_name(command));
  for (const ValueFacts& argument : command.arguments) {
    const std::string name = italic(argument.names.front());
    usage += argument.required ? " " + name : " [" + name + "]";
  }
  *page += ".SS " + usage + " [options]\n" + escaped(command.description) + ".\n";
  for (const ValueFacts& argument : command.arguments) {
    *page += tagged(italic(argument.names.front()), description_of(argument));
  }
  for (const ValueFacts& option : command.options) *page += tagged(option_tag(option), description_of(option));
  if (!command.footer.empty()) *page += ".PP\n" + paragraphs(command.footer);
}

std::string exit_codes() {
  std::string result;
  for (const ExitCodeMeaning& one : kExitCodes) {
    result +=
        tagged(bold(std::to_string(static_cast<int>(one.code))), plain(std::string(one.meaning) + " " + one.details));
  }
  return result;
}

std::string variables() {
  std::string result;
  for (const Variable& one : kVariables) {
    const std::string text = std::string(one.effect) + " Read by " + one.readers + ".";
    result += tagged(bold(join(split(one.names, ' '), ", ")) + ": " + italic(one.value), plain(text));
  }
  return result;
}

std::string man_page(const CommandFacts& app, const std::string& version) {
  std::string page = ".TH DTRAIN 1 \"\" \"dtrain " + version + "\" \"User Commands\"\n";
  page += ".SH NAME\ndtrain \\- train libtorch models data\\-parallel, and see where the time goes\n";
  page += ".SH SYNOPSIS\n" + bold("dtrain") + " " + italic("COMMAND") + " [" + italic("options") + "]\n";
  page += ".SH DESCRIPTION\n" + paragraphs(app.description);
  for (const ValueFacts& option : app.options) page += tagged(option_tag(option), option.description);
  page += ".SH COMMANDS\n";
  for (const CommandFacts& command : app.commands) add_command(command, &page);
  page += ".SH EXIT STATUS\n" + exit_codes();
  page += ".SH ENVIRONMENT\n" + variables();
  page += ".SH FILES\n";
  for (const Entry& entry : kFiles) page += tagged(bold(entry.name), entry.text);
  if (!app.footer.empty()) page += ".SH EXAMPLES\n" + paragraphs(app.footer);
  page += ".SH SEE ALSO\n" + bold("dtrain-get-libtorch") + " \\-\\-help; the documents in /usr/share/doc/dtrain\n";
  return page;
}

}  // namespace

void add_man(CLI::App& app, ExitCode*) {
  CLI::App* command = app.add_subcommand("man", "Print the man page (troff)");
  command->group("");  // for the build: users have `man dtrain`
  command->callback([&app] { std::fputs(man_page(read_facts(app), run::version()).c_str(), stdout); });
}

}  // namespace dtrain::cli
