#include "keys/length_paths.h"

#include "document/collector.h"

namespace dtrain::config {
namespace {

class LengthPaths : public Keys {
 public:
  void visit(const Key& key, KeyType& type) override {
    const std::string path = join_path(section_, key.name);
    if (type.is_length()) paths_.push_back(path);
    const std::string outside = std::exchange(section_, path);
    type.visit_keys(*this);
    section_ = outside;
  }
  std::vector<std::string> take() { return std::move(paths_); }

 private:
  std::string section_;
  std::vector<std::string> paths_;
};

}  // namespace

std::vector<std::string> length_paths(const Keys::Declare& declare) {
  LengthPaths visitor;
  declare(visitor);
  return visitor.take();
}

}  // namespace dtrain::config
