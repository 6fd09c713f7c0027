#include <filesystem>
#include <memory>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/board/board.h"

namespace dtrain::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBoardFooter =
    R"(The page has a table of all runs, the curves of one or several of them, what a run does right now and where its time
goes, its findings, checkpoints and logs, and the queue of this user. It reads the runs' folders and nothing else, and
loads nothing from a network. Only who has the token in the printed address may read it.

for example:
  dtrain board                       the runs under ./runs
  dtrain board ~/a/runs ~/b/runs     those of several projects
  dtrain board --control             also launch runs, and stop, pause and activate tasks
  dtrain board --port 8080           always at the same port, for an `ssh -L 8080:127.0.0.1:8080 HOST` from afar)";

struct BoardArguments {
  board::BoardOptions options;
  std::vector<std::string> folders;
};

void check_board(BoardArguments& arguments) {
  if (arguments.folders.empty()) arguments.folders = {"runs"};
  for (const std::string& folder : arguments.folders) {
    std::error_code code;
    const fs::path path = fs::absolute(folder).lexically_normal();
    if (folder != "runs" && !fs::is_directory(path, code)) {
      throw ConfigError("there is no folder " + path.string(), "name the folder that runs are in, such as ./runs");
    }
    arguments.options.folders.push_back(path.has_filename() ? path : path.parent_path());
  }
}

}  // namespace

void add_board(CLI::App& app, ExitCode* exit_code) {
  auto arguments = std::make_shared<BoardArguments>();
  CLI::App* command = app.add_subcommand("board", "Serve a web page of all runs and of the queue, on this machine");
  command->add_option("FOLDER", arguments->folders, "Folders of runs (default: ./runs, which may come later)");
  command->add_option("--port", arguments->options.port, "The port; 0: a free one (default)");
  command->add_option("--address", arguments->options.address,
                      "The address to listen on (default 127.0.0.1: this machine alone). Others can read what passes "
                      "over a network: prefer ssh -L");
  command->add_option("--base-url", arguments->options.base_url,
                      "The address by which a proxy is reached that passes requests on: https://host/path");
  command->add_flag("--control", arguments->options.control,
                    "Let the page launch runs, and kill, pause and activate tasks, as this user");
  command->add_flag("--open", arguments->options.open, "Open the page in the browser");
  command->footer(kBoardFooter);
  command->callback([arguments, exit_code] {
    check_board(*arguments);
    *exit_code = board::serve_board(arguments->options);
  });
}

}  // namespace dtrain::cli
