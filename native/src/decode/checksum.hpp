// Checksums for the decoders beside them.
#pragma once

#include <cstdint>

#include "solar/bytes.hpp"

namespace solar {

// Adler-32 of RFC 1950. Continues `sum`, which begins as 1.
std::uint32_t adler32(std::uint32_t sum, Bytes in);

// CRC-32 of RFC 1952, and CRC-32C of RFC 3720.
std::uint32_t crc32(Bytes in);
std::uint32_t crc32c(Bytes in);

// What lies before the last four bytes, which are its CRC-32C, not copied. Throws Error(codec) where that is wrong.
Bytes check_crc32c(Bytes in);

// What lies before the checksum of filter fletcher32, not copied. Throws Error(codec) where the sum is wrong.
Bytes check_fletcher32(Bytes in);

}  // namespace solar
