// Files that a reader must refuse, each with the exact errors: documents wrong/TOPIC.txt (experiments) and
// wrong_cluster/TOPIC.txt (cluster files). A document begins with comments. Then follow its cases:
//
//   === an unknown key                            the title, which is part of the test's name
//   agregation_frequency: 4                       the file, line by line
//   === errors
//   experiment.yaml:1: agregation_frequency: …    all that the reader says
//
// An empty line separates cases. {byte e9} in the file stands for the byte of this number, for what is no text.
// wrong_cases.py reads the same documents.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dtrain::config {

struct WrongCase {
  std::string topic;  // "syntax" of wrong/syntax.txt
  std::string title;
  std::string text;    // of the file
  std::string errors;  // each line with its newline
};

struct WrongCases {
  std::vector<WrongCase> cases;
  // What is wrong with the documents: "wrong/keys.txt:12: …". A test requires that there is nothing, so that no case is
  // lost silently.
  std::vector<std::string> problems;
};

// Those of a folder of tests/config, by topic and in the order of each document.
WrongCases read_wrong_cases(const std::filesystem::path& folder);

}  // namespace dtrain::config
