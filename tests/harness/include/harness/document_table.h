// Parts of documents that are made of the code: tests compare them, and write them anew if DTRAIN_REWRITE_DOCUMENTS is
// set.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "dtrain/base/file.h"

namespace dtrain::harness {

// The text with `table` between the lines "<!-- NAME ... -->" and "<!-- end of ... -->"; empty where they are not.
inline std::string with_table(const std::string& text, const std::string& name, const std::string& table) {
  const auto begin = text.find("<!-- " + name + " ");
  const auto first = begin == std::string::npos ? begin : text.find('\n', begin);
  const auto end = first == std::string::npos ? first : text.find("<!-- end of ", first);
  if (end == std::string::npos) return "";
  return text.substr(0, first) + "\n\n" + table + "\n" + text.substr(end);
}

// The first line of `expected` that `text` has otherwise, in quotes; empty: they are the same.
inline std::string first_difference(const std::string& text, const std::string& expected) {
  if (text == expected) return "";
  const auto end = std::min(text.size(), expected.size());
  std::size_t at = 0;
  while (at < end && text[at] == expected[at]) ++at;
  const auto line = at == 0 ? 0 : expected.rfind('\n', at - 1) + 1;
  return "'" + expected.substr(line, expected.find('\n', line) - line) + "'";
}

// Fails if the document is not `expected`. `test`: the program and its filter, which write it anew.
inline void expect_document(const std::string& file, const std::string& expected, const std::string& test) {
  ASSERT_FALSE(expected.empty()) << "the marks of a table are missing in " << file;
  if (std::getenv("DTRAIN_REWRITE_DOCUMENTS")) std::ofstream(file, std::ios::binary) << expected;
  EXPECT_EQ(first_difference(read_file(file), expected), "")
      << file << " is not what the code says; write it anew:\n  DTRAIN_REWRITE_DOCUMENTS=1 " DTRAIN_BINARY_DIR "/tests/"
      << test;
}

}  // namespace dtrain::harness
