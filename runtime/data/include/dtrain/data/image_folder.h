// Pictures in one folder for each class, like torchvision's ImageFolder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/sample.h"

namespace dtrain::data {

struct ClassifiedFile {
  std::filesystem::path path;
  std::int64_t label = 0;
};

// FOLDER/CLASS/….jpg, .jpeg or .png (any case), also in folders below. Classes are numbered in the order of their
// names, and files are in the order of their paths. Hidden files and folders (.ipynb_checkpoints, ._a.jpg) and other
// files are left out. DataError: no folder, no class, a class without pictures, a picture that is a symbolic link to
// nothing, or a folder to which a symbolic link leads a second time.
struct ImageFolderFiles {
  std::vector<std::string> classes;
  std::vector<ClassifiedFile> files;
  std::string left_out;  // "2 hidden (.DS_Store, …)"; empty: nothing
};
ImageFolderFiles list_image_folder(const std::filesystem::path& folder);

// Samples "image", the bytes of the file (uint8 [bytes]), and "label" (int64). Each is read from its file when it is
// asked for. Standard error has a line about files that are left out.
std::shared_ptr<SampleSource> load_image_folder(const std::filesystem::path& folder);

// DataError if the folders have not the same classes: then one class would have different numbers in them. It names
// those that one of them lacks. Reads the names of the classes alone.
void check_same_classes(const std::filesystem::path& training, const std::filesystem::path& validation);

}  // namespace dtrain::data
