// SOLAR_ASAN: 1 where AddressSanitizer watches, which knows memory of the heap alone.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define SOLAR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SOLAR_ASAN 1
#endif
#endif
#ifndef SOLAR_ASAN
#define SOLAR_ASAN 0
#endif
