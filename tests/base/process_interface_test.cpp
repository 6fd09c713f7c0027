// Exit codes and environment variables: the tables of the documents, and the variables that the sources name, are those
// of process_interface.h. To write the tables anew:
//   DTRAIN_REWRITE_DOCUMENTS=1 build/release/tests/base_test --gtest_filter='ProcessInterface*'
#include <filesystem>
#include <iterator>
#include <set>

#include <gmock/gmock.h>

#include "dtrain/base/process_interface.h"
#include "dtrain/base/text.h"
#include "harness/document_table.h"

namespace dtrain {
namespace {

namespace fs = std::filesystem;
using testing::Contains;

void expect_table(const std::string& document, const std::string& name, const std::string& table) {
  const std::string file = DTRAIN_SOURCE_DIR "/docs/" + document;
  harness::expect_document(file, harness::with_table(read_file(file), name, table),
                           "base_test --gtest_filter='ProcessInterface*'");
}

TEST(ProcessInterface, TheDocumentHasTheExitCodes) {
  std::string table = "| exit code | meaning |\n|---|---|\n";
  for (const ExitCodeMeaning& one : kExitCodes) {
    table += "| " + std::to_string(static_cast<int>(one.code)) + " | " + one.meaning + (*one.details ? " " : "") +
             one.details + " |\n";
  }
  expect_table("errors.md", "exit codes", table);
}

TEST(ProcessInterface, TheDocumentHasTheVariables) {
  std::string table = "| variable | value | effect | read by |\n|---|---|---|---|\n";
  for (const Variable& one : kVariables) {
    table += "| `" + join(split(one.names, ' '), "`, `") + "` | " + one.value + " | " + one.effect + " | " +
             one.readers + " |\n";
  }
  expect_table("launching.md", "environment variables", table);
}

// The words between quotes in the product's C++ and Python. Programs name a variable by a literal of its own.
std::set<std::string> quoted_words() {
  constexpr const char* kOfWords = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  std::set<std::string> found;
  for (const char* folder : {"runtime", "comm", "scheduler", "python", "examples"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(fs::path(DTRAIN_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension();
      const bool is_source = extension == ".cpp" || extension == ".h" || extension == ".py";
      if (!is_source || entry.path().filename() == "process_interface.h") continue;
      const std::string text = read_file(entry.path());
      for (auto at = text.find_first_of("\"'"); at != std::string::npos; at = text.find_first_of("\"'", at + 1)) {
        const auto end = text.find_first_not_of(kOfWords, at + 1);
        if (end != std::string::npos && text[end] == text[at]) found.insert(text.substr(at + 1, end - at - 1));
      }
    }
  }
  return found;
}

TEST(ProcessInterface, TheSourcesReadTheVariablesThatItLists) {
  const std::set<std::string> in_sources = quoted_words();
  std::set<std::string> listed(std::begin(kInternalVariables), std::end(kInternalVariables));
  for (const Variable& one : kVariables) {
    for (const std::string& name : split(one.names, ' '))
      EXPECT_TRUE(listed.insert(name).second) << name << " is listed twice";
  }
  for (const std::string& name : listed) EXPECT_THAT(in_sources, Contains(name)) << "no program reads it";
  for (const std::string& name : in_sources) {
    const bool is_variable = name.starts_with("DTRAIN_") && !name.ends_with('_');  // no beginning of names
    if (is_variable) {
      EXPECT_THAT(listed, Contains(name)) << "describe it in process_interface.h";
    }
  }
}

}  // namespace
}  // namespace dtrain
