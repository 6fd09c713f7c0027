#include "wrong_cases.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "dtrain/base/file.h"

namespace dtrain::config {
namespace {

const std::string kMark = "=== ";
const std::string kErrors = kMark + "errors";

// The byte of each {byte e9}.
std::string with_bytes(std::string text) {
  const std::string mark = "{byte ";
  for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const auto number = std::stoi(text.substr(at + mark.size(), 2), nullptr, 16);
    text.replace(at, mark.size() + 3, 1, static_cast<char>(number));
  }
  return text;
}

class Document {
 public:
  Document(const std::filesystem::path& file, WrongCases& into)
      : name_(file.parent_path().filename() / file.filename()), topic_(file.stem()), into_(into) {}

  void read(const std::string& content) {
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) {
      ++number_;
      if (line == kErrors) {
        if (part_ != Part::kFile) problem("errors without a file before them");
        part_ = Part::kErrors;
      } else if (line.starts_with(kMark)) {
        begin_case(line.substr(kMark.size()));
      } else {
        add(line);
      }
    }
    ++number_;
    end_case();
    if (part_ == Part::kComments) problem("no case in this document");
  }

 private:
  enum class Part { kComments, kFile, kErrors, kBetween };

  void problem(const std::string& what) {
    into_.problems.push_back(name_.string() + ":" + std::to_string(number_) + ": " + what);
  }
  void begin_case(const std::string& title) {
    end_case();
    if (!titles_.insert(title).second) problem("a second case '" + title + "'");
    case_ = {topic_.string(), title, {}, {}};
    part_ = Part::kFile;
  }
  void end_case() {
    if (part_ == Part::kComments) return;
    if (case_.errors.empty())
      problem("the case '" + case_.title + "' before this line has no '=== errors', or none follow");
    case_.text = with_bytes(std::move(case_.text));
    into_.cases.push_back(std::move(case_));
  }
  void add(const std::string& line) {
    if (part_ == Part::kFile) {
      case_.text += line + "\n";
    } else if (part_ == Part::kErrors && !line.empty()) {
      case_.errors += line + "\n";
    } else if (part_ == Part::kErrors) {
      part_ = Part::kBetween;
    } else if (!line.empty() && (part_ == Part::kBetween || !line.starts_with('#'))) {
      problem("'" + line + "' belongs to no case; a case begins with '=== TITLE'");
    }
  }

  std::filesystem::path name_;
  std::filesystem::path topic_;
  WrongCases& into_;
  std::set<std::string> titles_;
  Part part_ = Part::kComments;
  int number_ = 0;
  WrongCase case_;
};

}  // namespace

WrongCases read_wrong_cases(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  WrongCases result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") {
      files.push_back(entry.path());
    } else {
      result.problems.push_back((folder.filename() / entry.path().filename()).string() +
                                ": is no document of cases; make it a case of a .txt beside it (CONTRIBUTING.md)");
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) Document(file, result).read(read_file(file));
  return result;
}

}  // namespace dtrain::config
