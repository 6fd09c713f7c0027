#include "dtrain/data/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

constexpr std::array<std::string_view, 3> kEndings{".jpg", ".jpeg", ".png"};

bool is_picture(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  for (char& letter : ending) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end();
}

// Walks through the folders of a data set. Each folder may be entered only once, despite symbolic links: a loop would
// give each picture many times, and a link to another class would give pictures two classes.
class FolderWalk {
 public:
  explicit FolderWalk(const std::filesystem::path& root) : root_(root) { enter(root, false); }

  // Returns the pictures of a class, including those in folders below, in the order of their paths.
  std::vector<std::filesystem::path> pictures_of(const std::string& name) {
    const std::filesystem::path folder = root_ / name;
    std::vector<std::filesystem::path> files;
    add_pictures(folder, std::filesystem::is_symlink(folder), files);
    std::sort(files.begin(), files.end());
    return files;
  }
  const LeftOut& left_out() const { return left_out_; }

 private:
  struct Entered {
    std::filesystem::path path;
    bool by_link;
  };

  // Folders on paths without links are not compared, because some file systems give them all the same number.
  void enter(const std::filesystem::path& folder, bool by_link) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return;  // the listing reports the error
    const auto [found, is_new] = entered_.try_emplace({status.st_dev, status.st_ino}, Entered{folder, by_link});
    if (is_new || !(by_link || found->second.by_link)) return;
    throw DataError(folder.string() + ": a symbolic link makes this folder the same as " + found->second.path.string() +
                        ", so its pictures would come twice",
                    "remove the link");
  }

  void add_pictures(const std::filesystem::path& folder, bool by_link, std::vector<std::filesystem::path>& files) {
    enter(folder, by_link);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::filesystem::path& path = entry.path();
      const bool is_link = entry.is_symlink();
      if (is_hidden(path.filename())) {
        left_out_.add_hidden(path);
      } else if (entry.is_directory()) {
        add_pictures(path, by_link || is_link, files);
      } else if (!is_picture(path)) {
        left_out_.add_other(path);
      } else if (entry.is_regular_file()) {
        files.push_back(path);
      } else {
        throw DataError(path.string() + ": " + (is_link && !entry.exists() ? "a symbolic link to nothing" : "no file"),
                        "remove it, or give the picture");
      }
    }
  }

  std::filesystem::path root_;
  std::map<std::pair<dev_t, ino_t>, Entered> entered_;
  LeftOut left_out_{"that are no .jpg, .jpeg or .png"};
};

// Keeps the paths as one text, without a string for each.
class FolderSamples final : public SampleSource {
 public:
  explicit FolderSamples(const ImageFolderFiles& listed) {
    for (const ClassifiedFile& file : listed.files) {
      ends_.push_back(paths_.size());
      paths_ += file.path.string();
      labels_.push_back(static_cast<std::int32_t>(file.label));
    }
    ends_.push_back(paths_.size());
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  const std::vector<std::string>& names() const override { return names_; }

  Sample read(const Pass&, std::int64_t index) const override {
    const DataFile file(where(index));
    Value image = Value::make(ElementType::kUint8, {static_cast<std::int64_t>(file.size())});
    const std::size_t got = file.read_at(0, {image.data.get(), image.bytes()});
    if (got < image.bytes()) file.fail(got, "truncated: the file has become shorter while it was read");
    return {index, {std::move(image), Value::scalar(labels_[static_cast<std::size_t>(index)])}};
  }

  // Returns the path of the file.
  std::string where(std::int64_t index) const override {
    check_index(index, size());
    const auto at = static_cast<std::size_t>(index);
    return paths_.substr(ends_[at], ends_[at + 1] - ends_[at]);
  }

 private:
  const std::vector<std::string> names_{"image", "label"};
  std::string paths_;
  std::vector<std::size_t> ends_;  // offset of each path in paths_, and the end of the last
  std::vector<std::int32_t> labels_;
};

// Returns the classes in the order of their names. Hidden folders are no classes: Jupyter leaves .ipynb_checkpoints.
std::vector<std::string> classes_in(const std::filesystem::path& folder) {
  std::vector<std::string> classes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!is_hidden(entry.path().filename()) && entry.is_directory()) {
      classes.push_back(entry.path().filename().string());
    }
  }
  std::sort(classes.begin(), classes.end());
  return classes;
}

DataError unreadable(const std::filesystem::path& folder, const std::filesystem::filesystem_error& error) {
  return DataError(folder.string() + ": cannot be read: " + error.code().message(),
                   "give a folder that has a folder for each class");
}

// Returns a text such as "'cat', 'dog' and 7 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) shown.push_back("'" + names[i] + "'");
  return join(shown, ", ") + (names.size() > kShown ? " and " + std::to_string(names.size() - kShown) + " more" : "");
}

}  // namespace

void check_same_classes(const std::filesystem::path& training, const std::filesystem::path& validation) {
  std::vector<std::string> of_training, of_validation;
  try {
    of_training = classes_in(training);
    of_validation = classes_in(validation);
  } catch (const std::filesystem::filesystem_error& error) {
    throw unreadable(error.path1(), error);
  }
  const auto only_in = [](const std::vector<std::string>& has, const std::vector<std::string>& lacks) {
    std::vector<std::string> names;
    std::set_difference(has.begin(), has.end(), lacks.begin(), lacks.end(), std::back_inserter(names));
    return names;
  };
  std::vector<std::string> differences;
  const auto add = [&](const std::vector<std::string>& names, const std::filesystem::path& has,
                       const std::filesystem::path& lacks) {
    if (!names.empty())
      differences.push_back(lacks.string() + " lacks " + some_of(names) + ", which " + has.string() + " has");
  };
  add(only_in(of_training, of_validation), training, validation);
  add(only_in(of_validation, of_training), validation, training);
  if (differences.empty()) return;
  throw DataError("the classes of training and validation differ: " + join(differences, "; "),
                  "classes are numbered in the order of their names, so both folders need the same ones");
}

ImageFolderFiles list_image_folder(const std::filesystem::path& folder) {
  ImageFolderFiles listed;
  try {
    listed.classes = classes_in(folder);
    FolderWalk walk(folder);
    for (std::size_t label = 0; label < listed.classes.size(); ++label) {
      const auto files = walk.pictures_of(listed.classes[label]);
      if (files.empty()) {
        throw DataError((folder / listed.classes[label]).string() + ": has no pictures (.jpg, .jpeg, .png)",
                        "remove the folder, or put the pictures of the class into it");
      }
      for (const auto& file : files) listed.files.push_back({file, static_cast<std::int64_t>(label)});
    }
    listed.left_out = walk.left_out().to_string();
  } catch (const std::filesystem::filesystem_error& error) {
    throw unreadable(error.path1(), error);
  }
  if (listed.classes.empty()) {
    throw DataError(folder.string() + ": has no folders, and each class needs one",
                    "put the pictures into FOLDER/CLASS/");
  }
  return listed;
}

std::shared_ptr<SampleSource> load_image_folder(const std::filesystem::path& folder) {
  const ImageFolderFiles listed = list_image_folder(folder);
  tell_left_out(folder.string(), listed.left_out);
  return std::make_shared<FolderSamples>(listed);
}

std::shared_ptr<SampleSource> ImageFolder::open_samples(const Source& source, const HostShare&) const {
  return load_image_folder(source.at("folder"));
}

}  // namespace dtrain::data
