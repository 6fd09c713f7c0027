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

using ::testing::AllOf;
using ::testing::ElementsAre;
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

TEST_F(ImageFolderTest, HiddenFilesAndFoldersAreLeftOut) {
  const auto train = with_classes("train", {".ipynb_checkpoints", "cat", "dog"});
  std::filesystem::create_directories(train / "cat/.ipynb_checkpoints");
  for (const char* file : {"cat/.ipynb_checkpoints/a.jpg", "cat/._a.jpg", "cat/a.jpg", "dog/.hidden.png", "dog/b.png",
                           ".ipynb_checkpoints/c.jpg", "dog/notes.txt"}) {
    write(std::string("train/") + file, "x");
  }
  const ImageFolderFiles listed = list_image_folder(train);
  EXPECT_THAT(listed.classes, ElementsAre("cat", "dog"));
  ASSERT_EQ(listed.files.size(), 2u);
  EXPECT_EQ(listed.files[1].path, train / "dog/b.png");
  EXPECT_EQ(listed.files[1].label, 1);
  EXPECT_THAT(listed.left_out, AllOf(HasSubstr("3 hidden ("), HasSubstr(", 1 that are no .jpg, .jpeg or .png ("),
                                     HasSubstr("notes.txt)")));
  EXPECT_EQ(difference(train, with_classes("val", {"cat", "dog"})), "none");
}

TEST_F(ImageFolderTest, AFolderIsReadOnce) {
  namespace fs = std::filesystem;
  const auto train = with_classes("train", {"cat", "dog/deep"});
  with_classes("elsewhere", {"hen"});
  for (const char* file : {"train/cat/a.jpg", "train/dog/deep/b.jpg", "elsewhere/hen/c.jpg"}) write(file, "x");
  fs::create_directory_symlink(folder_ / "elsewhere/hen", train / "hen");
  fs::create_symlink("a.jpg", train / "cat/again.jpg");
  EXPECT_EQ(list_image_folder(train).files.size(), 4u) << "links that lead to no folder twice are followed";
  const auto refused = [&](const fs::path& target, const std::string& link) {
    fs::create_directory_symlink(target, train / link);
    std::string text = "accepted";
    try {
      list_image_folder(train);
    } catch (const DataError& error) {
      text = error.what();
    }
    fs::remove(train / link);
    return text;
  };
  const std::string same = ": a symbolic link makes this folder the same as ";
  EXPECT_THAT(refused("..", "cat/loop"), HasSubstr("train/cat/loop" + same + train.string() + ", so its pictures"));
  EXPECT_THAT(refused(".", "cat/loop"), HasSubstr("train/cat/loop" + same + train.string() + "/cat, so"));
  EXPECT_THAT(refused(".", "all"), HasSubstr("train/all" + same + train.string() + ", so"));
  EXPECT_THAT(refused("cat", "kitten"), HasSubstr("train/kitten" + same + train.string() + "/cat, so"));
  EXPECT_THAT(refused("../dog/deep", "cat/more"),
              HasSubstr("train/dog/deep" + same + train.string() + "/cat/more, so"));
  EXPECT_THAT(refused("nowhere", "cat/gone.jpg"), HasSubstr("cat/gone.jpg: a symbolic link to nothing"));
  EXPECT_THAT(refused("loop", "cat/loop"),
              HasSubstr("train/cat/loop: cannot be read: Too many levels of symbolic links"));
  EXPECT_EQ(refused("nowhere", "cat/gone"), "accepted") << "no picture by its name";
  EXPECT_EQ(list_image_folder(train).files.size(), 4u);
}

TEST_F(ImageFolderTest, AFolderThatIsMissingIsNamed) {
  EXPECT_THAT(difference(with_classes("train", {"cat"}), folder_ / "nowhere"), HasSubstr("nowhere: cannot be read"));
}

}  // namespace
}  // namespace dtrain::data
