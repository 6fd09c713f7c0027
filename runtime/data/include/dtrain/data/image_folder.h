// Pictures in a folder for each class, as torchvision's ImageFolder has them.
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
// names, and files are in the order of their paths. Other files are left out. DataError: no folder, no class, or a
// class without pictures.
struct ImageFolderFiles {
  std::vector<std::string> classes;
  std::vector<ClassifiedFile> files;
};
ImageFolderFiles list_image_folder(const std::filesystem::path& folder);

// Samples "image", the bytes of the file (uint8 [bytes]), and "label" (int64). Each is read from its file when it is
// asked for.
std::shared_ptr<SampleSource> load_image_folder(const std::filesystem::path& folder);

// DataError if the folders have not the same classes: then one class would have different numbers in them. It names
// those that one of them lacks. Reads the names of the classes alone.
void check_same_classes(const std::filesystem::path& training, const std::filesystem::path& validation);

}  // namespace dtrain::data
