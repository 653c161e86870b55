// SPDX-License-Identifier: MIT
// What the tests of this room share: folders that go away, states to save, and checkpoints made of them.
#pragma once

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/file_image.hpp"

#include "support/file_content.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace railyard_test {

namespace ry = railyard;
namespace fs = std::filesystem;

/// Is a new folder, removed at the end. In memory where that can be: nothing here is about a real disk.
class Scratch {
 public:
  Scratch() {
    const fs::path where = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    std::string pattern = (where / "railyard-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error{"mkdtemp failed"};
    path_ = pattern;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

inline std::string read_file(const fs::path& path) { return file_content(path); }

inline void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file{path, std::ios::binary | std::ios::trunc};
  file << text;
  file.close();
  if (!file) throw std::runtime_error{"cannot write " + path.string()};
}

/// Is a tensor whose elements lie in a vector.
template <class T>
ry::StateTensor tensor_of(std::string name, std::vector<std::int64_t> shape, std::vector<T> elements) {
  auto held = std::make_shared<const std::vector<T>>(std::move(elements));
  ry::StateTensor tensor{.name = std::move(name), .dtype = ry::dtype_of<T>, .shape = std::move(shape)};
  tensor.read = [held](std::int64_t begin, std::int64_t end, std::byte* to) {
    std::memcpy(to, held->data() + begin, static_cast<std::size_t>(end - begin) * sizeof(T));
  };
  return tensor;
}

/// Leaves only the elements [begin, end) to this rank.
inline ry::StateTensor piece_of(ry::StateTensor tensor, std::int64_t begin, std::int64_t end) {
  tensor.is_piece = true;
  tensor.begin = begin;
  tensor.end = end;
  tensor.read = [read = tensor.read, begin, end](std::int64_t from, std::int64_t until, std::byte* to) {
    if (from < begin || until > end) throw std::logic_error{"elements were read that this rank does not have"};
    read(from, until, to);
  };
  return tensor;
}

template <class T>
std::vector<T> elements_of(const ry::StateTensor& tensor) {
  if (tensor.dtype != ry::dtype_of<T>) throw std::logic_error{"the tensor has another type"};
  std::vector<T> elements(static_cast<std::size_t>(tensor.count()));
  tensor.read(0, tensor.count(), reinterpret_cast<std::byte*>(elements.data()));
  return elements;
}

/// Is the content of a file image, which keeps within its size.
inline std::string content_of(const ry::FileImage& image) {
  constexpr char guard = 0x5A;
  std::string content(image.size + 64, guard);
  image.fill(reinterpret_cast<std::byte*>(content.data()));
  if (content.find_first_not_of(guard, image.size) != std::string::npos) throw std::logic_error{"beyond the size"};
  content.resize(image.size);
  return content;
}

/// Is what all ranks contribute to one checkpoint.
class Contribution {
 public:
  void add(std::span<const ry::NamedState> parts, int rank) {
    for (const ry::FileImage& image : ry::file_images(parts, rank)) add(image.name, content_of(image));
  }
  void add(std::string name, std::string content) {
    contents_.push_back(std::make_unique<std::pair<std::string, std::string>>(std::move(name), std::move(content)));
    parts_.push_back({contents_.back()->first, std::as_bytes(std::span{contents_.back()->second})});
  }
  [[nodiscard]] std::span<const ry::CheckpointFolder::Part> parts() const { return parts_; }

 private:
  std::vector<std::unique_ptr<std::pair<std::string, std::string>>> contents_{};
  std::vector<ry::CheckpointFolder::Part> parts_{};
};

/// Is a small checkpoint of two ranks: a module, an optimizer in pieces, and the random numbers of each rank.
inline Contribution small_contribution(float value = 1) {
  Contribution contribution;
  for (int rank = 0; rank < 2; ++rank) {
    ry::State net{{"trained", true}};
    net.tensors.push_back(tensor_of<float>("weight", {2, 3}, {value, 2, 3, 4, 5, 6}));
    net.tensors.push_back(tensor_of<std::int64_t>("steps", {}, {7}));
    ry::State optimizer{{"lr", 0.1}};
    optimizer.tensors.push_back(
        piece_of(tensor_of<double>("momentum", {5}, {value, 1, 2, 3, 4}), rank == 0 ? 0 : 3, rank == 0 ? 3 : 5));
    ry::State random{{"seed", rank + 40}};
    random.is_own = true;
    const std::vector<ry::NamedState> parts{{"net", net}, {"optimizer", optimizer}, {"random", random}};
    contribution.add(parts, rank);
  }
  contribution.add("files/vocabulary/words.txt", "ant bee cat");
  return contribution;
}

}  // namespace railyard_test
