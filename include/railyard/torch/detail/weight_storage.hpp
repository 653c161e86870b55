// SPDX-License-Identifier: MIT
// Tells whether the memory of a weight was replaced, and what ranks have in it then. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>

namespace railyard::inline v0_1 {

namespace detail {

// Where a tensor keeps its elements. What it has seen is not kept alive, but no other takes its address either: two
// replacements in a row may well come to lie where the first memory was.
class StorageMark {
 public:
  StorageMark() = default;
  explicit StorageMark(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    storage_ = tensor.storage().getWeakStorageImpl();
    data_ = tensor.data_ptr();
  }

  // Whether the tensor still keeps its elements there.
  [[nodiscard]] bool is_of(const at::Tensor& tensor) const {
    if (!tensor.has_storage()) return !storage_.has_value();
    return storage_ && storage_->_unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
           data_ == tensor.data_ptr();
  }

 private:
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_{};
  const void* data_ = nullptr;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
