// Files made to break a parser: each is answered with an error, in bounded time and memory.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "temporary_file.h"
#include "wrong_cases.h"

namespace dtrain::config {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

std::string error_of(const std::string& content) {
  const TemporaryFile file(content);
  try {
    read_experiment(file.path());
  } catch (const ConfigErrors& errors) {
    return errors.what();
  }
  return "accepted";
}

std::string repeat(const std::string& text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

TEST(HostileFile, HundredMegabytesAreRefusedUnread) {
  const TemporaryFile file("");
  std::filesystem::resize_file(file.path(), 100'000'000);
  try {
    read_experiment(file.path());
    FAIL() << "was accepted";
  } catch (const ConfigErrors& errors) {
    EXPECT_EQ(std::string(errors.what()), file.path().string() + ": larger than 1 MiB, which no experiment file is");
  }
}

TEST(HostileFile, AFileWithoutEndIsRefused) {
  EXPECT_THROW(read_experiment("/dev/zero"), ConfigErrors);
}

// As a shell gives it for `dtrain config check <(command)`.
TEST(PipeOfAShell, IsReadAsAFileWithinTheSameLimit) {
  const auto read = [](const std::string& content) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const UniqueFd reader(ends[0]);
    std::thread writer([&content, fd = UniqueFd(ends[1])] { write_all(fd.get(), content); });
    std::string error = "accepted";
    try {
      read_experiment("/dev/fd/" + std::to_string(reader.get()));
    } catch (const ConfigErrors& errors) {
      error = errors.what();
    }
    for (char rest[65'536]; ::read(reader.get(), rest, sizeof rest) > 0;) {
    }
    writer.join();
    return error;
  };
  EXPECT_THAT(read("name: [\n"), HasSubstr(":2: not valid YAML"));
  EXPECT_THAT(read("name: a\n"), testing::Not(HasSubstr("not valid YAML")));
  EXPECT_THAT(read(std::string(2'000'000, '#')), EndsWith("larger than 1 MiB, which no experiment file is"));
}

TEST(HostileFile, MissingFilesAndFoldersAreErrorsOfTheSameKind) {
  const TemporaryFile file("");
  const auto missing = file.path().parent_path() / "other.yaml";
  try {
    read_experiment(missing);
    FAIL() << "was accepted";
  } catch (const ConfigErrors& errors) {
    EXPECT_EQ(std::string(errors.what()), missing.string() + ": cannot be read: No such file or directory");
  }
  EXPECT_THROW(read_experiment(file.path().parent_path()), ConfigErrors);
}

TEST(HostileFile, DeepNestingIsRefusedInEveryStyle) {
  constexpr std::size_t kDepth = 100'000;
  for (const std::string opening : {"[", "{", "[{", "- ", "? ", "{a: ", "[[a, "}) {
    EXPECT_THAT(error_of("data: 1\n" + repeat(opening, kDepth)), HasSubstr("experiment.yaml:")) << opening;
    EXPECT_THAT(error_of(repeat(opening, kDepth)), HasSubstr("nested more than 64 levels deep")) << opening;
  }
  std::string stairs;
  for (std::size_t depth = 0; depth < 1000; ++depth) stairs += std::string(depth, ' ') + "a:\n";
  EXPECT_THAT(error_of(stairs), EndsWith("experiment.yaml:65: nested more than 64 levels deep"));
}

TEST(HostileFile, NestingWithinTheLimitIsAccepted) {
  EXPECT_EQ(error_of(kLeast + "data: {deep: " + repeat("[", 60) + repeat("]", 60) + "}\n"), "accepted");
}

TEST(HostileFile, ManyValuesAreRefused) {
  EXPECT_THAT(error_of("a: [" + repeat(",", 500'000) + "]"), HasSubstr("more than 20000 values"));
  EXPECT_THAT(error_of(repeat("a: 1\n", 100'000)), HasSubstr("more than 20000 values"));
}

TEST(HostileFile, RepeatedSyntaxIsAnErrorNotACrash) {
  for (const std::string piece :
       {"&a ", "*a ", "! ",       "!",       "\"",           "'", "|", ":", ">9\n", "%a\n", "---\n", "...\n", "?\n",
        ":\n", "-\n", "<<: *a\n", "a: \"\\", "\xef\xbb\xbf", "@", "`", "#", "\n",   " "}) {
    EXPECT_THAT(error_of(repeat(piece, 20'000)), HasSubstr("experiment.yaml:")) << piece;
  }
}

// What a slip of the hand or of a disk makes of good files: any answer will do that is an answer.
TEST(HostileFile, RandomChangesNeverCrash) {
  std::vector<std::string> seeds{kLeast};
  for (const WrongCase& wrong : read_wrong_cases(DTRAIN_SOURCE_DIR "/tests/config/wrong").cases) {
    seeds.push_back(wrong.text);
  }
  std::sort(seeds.begin(), seeds.end());
  const std::string alphabet = "[]{}:,-?&*!|>'\"%@`#\n\t \\~<0a";
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = seeds[random() % seeds.size()];
    for (unsigned change = 0; change <= random() % 6; ++change) {
      const std::size_t at = text.empty() ? 0 : random() % text.size();
      const char letter = alphabet[random() % alphabet.size()];
      switch (random() % 4) {
        case 0:
          text.insert(at, 1, letter);
          break;
        case 1:
          if (!text.empty()) text[at] = letter;
          break;
        case 2:
          text.erase(at, 1 + random() % 4);
          break;
        default:
          text.insert(at, text.substr(0, random() % 40));
      }
    }
    refused += error_of(text) == "accepted" ? 0 : 1;
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace dtrain::config
