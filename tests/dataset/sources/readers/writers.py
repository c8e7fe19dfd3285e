"""Files of every format, made by other people's writers."""

import io

import fastavro
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

_AVRO = (
    (pa.types.is_string, "string"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
)


def parquet(table, **options):
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def orc_file(table, **options):
    file = io.BytesIO()
    orc.write_table(table, file, **options)
    return file.getvalue()


def avro_type(kind):
    """Return the Avro type of an Arrow type."""
    if pa.types.is_timestamp(kind):
        name = {"ms": "timestamp-millis", "us": "timestamp-micros"}[kind.unit]
        return {"type": "long", "logicalType": name if kind.tz else f"local-{name}"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", avro_type(kind.value_type)]}
    return next(name for is_kind, name in _AVRO if is_kind(kind))


def avro(table, **options):
    fields = [{"name": field.name, "type": ["null", avro_type(field.type)]} for field in table.schema]
    return avro_records(fields, table.to_pylist(), **options)


def avro_records(fields, rows, **options):
    file = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "row", "namespace": "a.b", "fields": fields})
    fastavro.writer(file, schema, rows, **{"sync_marker": b"0123456789abcdef", **options})
    return file.getvalue()


def excel(table):
    return workbook({"Sheet": [table.schema.names, *(list(row.values()) for row in table.to_pylist())]})


def workbook(sheets, hidden=()):
    """Write rows of cells by the name of their sheet."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
        sheet.sheet_state = "hidden" if name in hidden else "visible"
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


WRITERS = {"parquet": parquet, "orc": orc_file, "avro": avro, "xlsx": excel}
