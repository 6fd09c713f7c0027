// Folders of pictures: training and validation need the same classes.
#include "dtrain/data/image_folder.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ImageFolderTest : public FileTest {
 protected:
  std::filesystem::path with_classes(const std::string& name, const std::vector<std::string>& classes) {
    const auto folder = folder_ / name;
    std::filesystem::create_directories(folder);
    for (const std::string& one : classes) std::filesystem::create_directories(folder / one);
    return folder;
  }
  static std::string difference(const std::filesystem::path& training, const std::filesystem::path& validation) {
    try {
      check_same_classes(training, validation);
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  }
};

TEST_F(ImageFolderTest, ClassesThatDifferAreNamed) {
  const auto train = with_classes("train", {"cat", "cow", "dog"});
  EXPECT_EQ(difference(train, with_classes("same", {"dog", "cat", "cow"})), "none");
  EXPECT_EQ(difference(train, with_classes("less", {"cat", "dog"})),
            "the classes of training and validation differ: " + (folder_ / "less").string() + " lacks 'cow', which " +
                train.string() + " has");
  const std::string both = difference(train, with_classes("other", {"cat", "dog", "hen"}));
  EXPECT_THAT(both, HasSubstr("other lacks 'cow'"));
  EXPECT_THAT(both, HasSubstr("train lacks 'hen'"));
}

TEST_F(ImageFolderTest, OfManyClassesSomeAreNamed) {
  std::vector<std::string> many;
  for (int i = 0; i < 9; ++i) many.push_back("c" + std::to_string(i));
  const std::string text = difference(with_classes("train", many), with_classes("val", {"c0"}));
  EXPECT_THAT(text, HasSubstr("lacks 'c1', 'c2', 'c3', 'c4', 'c5' and 3 more"));
  EXPECT_THAT(text, Not(HasSubstr("'c6'")));
}

TEST_F(ImageFolderTest, AFolderThatIsMissingIsNamed) {
  EXPECT_THAT(difference(with_classes("train", {"cat"}), folder_ / "nowhere"), HasSubstr("nowhere: cannot be read"));
}

}  // namespace
}  // namespace dtrain::data
