#include "hdf5/other_format.hpp"

#include <algorithm>
#include <string_view>

namespace solar::hdf5 {

namespace {

using std::string_view_literals::operator""sv;

struct Format {
  std::size_t at;  // where the magic stands
  std::string_view magic;
  const char* words;
};

// What begins alike stands before what begins shorter.
constexpr Format formats[] = {
    {0, "CDF\x01"sv, "netCDF-3: convert it with `nccopy -k nc4 OLD NEW`"},
    {0, "CDF\x02"sv, "netCDF-3: convert it with `nccopy -k nc4 OLD NEW`"},
    {0, "CDF\x05"sv, "netCDF-3: convert it with `nccopy -k nc4 OLD NEW`"},
    {0, "\x0e\x03\x13\x01"sv, "HDF4: convert it with `h4toh5 OLD NEW`"},
    {0, "\x89HDF"sv, "HDF5 that was transferred as text, or damaged: copy it again, in binary mode"},
    {0, "GRIB"sv, "GRIB: convert it with `grib_to_netcdf -k 4 -o NEW OLD`"},
    {0, "SIMPLE  ="sv, "FITS: read it with astropy, and write its arrays with h5py"},
    {0, "\x93NUMPY"sv, "a .npy file: numpy.load it, and write the array with h5py"},
    {0, "PK\x03\x04"sv, "a zip archive, as .npz and .pt are: unpack or load it, and write its arrays with h5py"},
    {257, "ustar"sv, "a tar archive: unpack it first"},
    {0, "\x1f\x8b"sv, "gzip: unpack it with `gunzip`"},
    {0, "BZh"sv, "bzip2: unpack it with `bunzip2`"},
    {0, "\xfd" "7zXZ\0"sv, "xz: unpack it with `unxz`"},
    {0, "\x28\xb5\x2f\xfd"sv, "Zstandard: unpack it with `zstd -d`"},
    {0, "MATLAB 5.0"sv, "a MATLAB file before 7.3: save it with -v7.3, which is HDF5"},
    {0, "II*\0"sv, "a TIFF image: write the images into a dataset with h5py"},
    {0, "MM\0*"sv, "a TIFF image: write the images into a dataset with h5py"},
    {0, "II+\0"sv, "a TIFF image: write the images into a dataset with h5py"},
    {0, "\x89PNG"sv, "a PNG image: write the images into a dataset with h5py"},
    {0, "\xff\xd8\xff"sv, "a JPEG image: write the images into a dataset with h5py"},
    {0, "PAR1"sv, "Parquet: read it with pandas, and write its columns with h5py"},
    {0, "version https://git-lfs"sv, "a Git LFS pointer, not the data: fetch them with `git lfs pull`"},
    {0, "/annex/objects/"sv, "a git-annex pointer, not the data: fetch them with `git annex get`"},
};

char lower_ascii(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

// A page of HTML may begin with spaces and a mark of its encoding, in small letters or capitals.
bool is_html(std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  std::string begin(head.substr(0, 14));
  std::transform(begin.begin(), begin.end(), begin.begin(), lower_ascii);
  return begin.starts_with("<!doctype html") || begin.starts_with("<html");
}

// ASCII, and what other encodings have beyond it: no byte that text has no use for.
bool is_text(std::string_view head) {
  return !head.empty() && std::none_of(head.begin(), head.end(), [](char letter) {
    const auto code = static_cast<unsigned char>(letter);
    return code == 0x7f || (code < 0x20 && letter != '\t' && letter != '\n' && letter != '\r' && letter != '\f');
  });
}

}  // namespace

std::string other_format(Bytes bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), telling_nbytes));
  for (const Format& format : formats) {
    if (head.substr(std::min(format.at, head.size())).starts_with(format.magic)) return format.words;
  }
  if (is_html(head)) return "a web page, such as an error or a login in place of a download: fetch the file again";
  return is_text(head) ? "text: read it with numpy or pandas, and write its arrays with h5py" : "";
}

}  // namespace solar::hdf5
