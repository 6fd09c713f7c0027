// The tables of docs/experiment.md say what the declarations of the keys say. To write them anew:
//   DTRAIN_REWRITE_DOCUMENTS=1 build/release/tests/config_test --gtest_filter='KeyTables*'
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "key_table.h"

namespace dtrain::config {
namespace {

bool is_of_rules(const std::string& path) {
  return path.starts_with("profiling.rules.");
}

bool is_of_model(const std::string& path) {
  return path == "loss" || path == "metrics" || path.starts_with("loss.") || path.starts_with("optimizer.") ||
         path == "optimizer" || path.starts_with("data.");
}

// The first line of `expected` that `text` has otherwise; empty: they are the same.
std::string first_difference(const std::string& text, const std::string& expected) {
  if (text == expected) return "";
  const auto end = std::min(text.size(), expected.size());
  std::size_t at = 0;
  while (at < end && text[at] == expected[at]) ++at;
  const auto line = at == 0 ? 0 : expected.rfind('\n', at - 1) + 1;
  return expected.substr(line, expected.find('\n', line) - line);
}

TEST(KeyTables, OfTheDocumentAreThoseOfTheDeclarations) {
  Experiment defaults;
  const auto declare = [&](Keys& keys) { declare_keys(keys, defaults); };
  const std::string file = DTRAIN_SOURCE_DIR "/docs/experiment.md";
  const std::string document = read_file(file);
  std::string expected = document;
  expected = with_table(expected, "rules", key_table(declare, is_of_rules));
  expected = with_table(expected, "model", key_table(declare, is_of_model));
  expected =
      with_table(expected, "all others",
                 key_table(declare, [](const std::string& path) { return !is_of_rules(path) && !is_of_model(path); }));
  ASSERT_FALSE(expected.empty()) << "the marks of a table are missing in " << file;
  if (std::getenv("DTRAIN_REWRITE_DOCUMENTS")) std::ofstream(file, std::ios::binary) << expected;
  EXPECT_EQ(first_difference(read_file(file), expected), "")
      << "the keys have changed; write the tables anew:\n"
         "  DTRAIN_REWRITE_DOCUMENTS=1 " DTRAIN_BINARY_DIR "/tests/config_test --gtest_filter='KeyTables*'";
}

}  // namespace
}  // namespace dtrain::config
