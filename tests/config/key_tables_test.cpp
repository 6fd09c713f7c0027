// The tables of docs/experiment.md say what the declarations of the keys say. To write them anew:
//   DTRAIN_REWRITE_DOCUMENTS=1 build/release/tests/config_test --gtest_filter='KeyTables*'
#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "harness/document_table.h"
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

TEST(KeyTables, OfTheDocumentAreThoseOfTheDeclarations) {
  Experiment defaults;
  const auto declare = [&](Keys& keys) { declare_keys(keys, defaults); };
  const std::string file = DTRAIN_SOURCE_DIR "/docs/experiment.md";
  const std::string document = read_file(file);
  std::string expected = document;
  expected = harness::with_table(expected, "keys: rules", key_table(declare, is_of_rules));
  expected = harness::with_table(expected, "keys: model", key_table(declare, is_of_model));
  expected = harness::with_table(expected, "keys: all others", key_table(declare, [](const std::string& path) {
                                   return !is_of_rules(path) && !is_of_model(path);
                                 }));
  harness::expect_document(file, expected, "config_test --gtest_filter='KeyTables*'");
}

}  // namespace
}  // namespace dtrain::config
