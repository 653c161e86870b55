// SPDX-License-Identifier: MIT
// A limit of how large files may become, for tests of what happens behind it.
#pragma once

#include <stdexcept>

#include <sys/resource.h>

/// Lets no file of this process grow beyond a size, for as long as it lives. Who writes beyond it and does not keep the
/// signal away that this raises, SIGXFSZ, ends the program.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t size) {
    ::getrlimit(RLIMIT_FSIZE, &former_);
    const rlimit limit{.rlim_cur = size, .rlim_max = former_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error{"setrlimit failed"};
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &former_); }

 private:
  rlimit former_{};
};
