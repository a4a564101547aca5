import java.io.IOException;
import java.nio.LongBuffer;
import java.nio.file.Path;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.columnar.ColumnarRowData;
import org.apache.flink.table.data.columnar.vector.ColumnVector;
import org.apache.flink.table.data.columnar.vector.VectorizedColumnBatch;
import org.apache.flink.table.data.columnar.vector.heap.HeapByteVector;
import org.apache.flink.table.data.columnar.vector.heap.HeapIntVector;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;

/**
 * Left interval joins in Flink SQL; jobs and answers are those of Nexmark, which calls this class.
 *
 * <p>One source reads the rows of both sides in turn, and each of its subtasks every second row of either side, so that
 * nothing is ahead in event time, and no more rows wait in the state than the bounds require.
 */
final class Joins {
    static final String SQL = "SELECT CAST(l.id AS BIGINT) AS l, CAST(l.ts AS TIMESTAMP(3)) AS e, CAST(r.id AS BIGINT) AS r"
            + " FROM lefts AS l LEFT JOIN rights AS r ON l.k = r.k"
            + " AND r.ts BETWEEN l.ts - INTERVAL '60' SECOND AND l.ts";

    private Joins() {}

    /** The rows of both sides in a directory, in turn; read once per process. */
    static VectorizedColumnBatch loaded;
    static String loadedFrom;

    static synchronized VectorizedColumnBatch rows(String directory, int size) throws IOException {
        String from = directory + " " + size;
        if (!from.equals(loadedFrom)) {
            HeapByteVector sides = new HeapByteVector(size);
            long[] times = new long[size];
            HeapIntVector keys = new HeapIntVector(size);
            HeapIntVector ids = new HeapIntVector(size);
            for (int side = 0; side < 2; side++) {
                Path place = Path.of(directory);
                String name = side == 0 ? "left" : "right";
                HeapIntVector read = Nexmark.ints(place.resolve(name + "-key.bin"), size / 2);
                LongBuffer at = Nexmark.bytes(place.resolve(name + "-time.bin")).asLongBuffer();
                for (int id = 0; id < size / 2; id++) {
                    int row = 2 * id + side;
                    sides.vector[row] = (byte) side;
                    times[row] = at.get(id);
                    keys.vector[row] = read.vector[id];
                    ids.vector[row] = id;
                }
            }
            loaded = new VectorizedColumnBatch(new ColumnVector[] {sides, new Nexmark.Times(times), keys, ids});
            loadedFrom = from;
        }
        return loaded;
    }

    /** Turns numbers into rows; each subtask has a half of the numbers. */
    static final class Read extends RichMapFunction<Long, RowData> {
        final String directory;
        final int size;
        transient ColumnarRowData row;
        transient boolean begun;

        Read(String directory, int size) {
            this.directory = directory;
            this.size = size;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            row = new ColumnarRowData(rows(directory, size));
        }

        @Override
        public RowData map(Long number) {
            if (!begun) {
                Nexmark.Seen.begin();
                begun = true;
            }
            int half = size / Nexmark.TASKS;
            int task = number.intValue() / half;
            int at = number.intValue() % half;
            int id = at / 2 * Nexmark.TASKS + task;
            row.setRowId(2 * id + at % 2);
            return row;
        }
    }

    /** Adds up the results whose left rows are older than a limit. */
    static final class Digest extends RichMapFunction<RowData, RowData> {
        final long limit;
        transient long rows, pairs, sum, at;

        Digest(long limit) {
            this.limit = limit;
        }

        @Override
        public RowData map(RowData row) {
            if (row.getTimestamp(1, 3).getMillisecond() < limit) {
                long right = row.isNullAt(2) ? -1 : row.getLong(2);
                rows++;
                pairs += right < 0 ? 0 : 1;
                sum += (row.getLong(0) + 1) * (right + 2) % 998_244_353;
            }
            at = System.nanoTime();
            return row;
        }

        @Override
        public void close() {
            Nexmark.Seen.add(rows, pairs, sum, at);
        }
    }

    /** Sets up the job on an environment; its tasks tell `Nexmark.Seen` what they have seen. */
    static void define(StreamExecutionEnvironment environment, StreamTableEnvironment tables, String[] job) {
        int size = Integer.parseInt(job[2]) / (2 * Nexmark.TASKS) * 2 * Nexmark.TASKS;
        RowType type = (RowType) DataTypes.ROW(
                        DataTypes.FIELD("side", DataTypes.TINYINT()),
                        DataTypes.FIELD("ts", DataTypes.TIMESTAMP(3)),
                        DataTypes.FIELD("k", DataTypes.INT()),
                        DataTypes.FIELD("id", DataTypes.INT()))
                .getLogicalType();
        DataStream<RowData> rows = environment
                .fromSequence(0, size - 1)
                .map(new Read(job[1], size))
                .returns(InternalTypeInfo.of(type));
        Schema.Builder schema = Schema.newBuilder()
                .column("side", DataTypes.TINYINT())
                .column("ts", DataTypes.TIMESTAMP(3))
                .column("k", DataTypes.INT())
                .column("id", DataTypes.INT())
                .watermark("ts", "ts - INTERVAL '2' SECOND");
        tables.createTemporaryView("everything", tables.fromDataStream(rows, schema.build()));
        tables.executeSql("CREATE TEMPORARY VIEW lefts AS SELECT k, ts, id FROM everything WHERE side = 0");
        tables.executeSql("CREATE TEMPORARY VIEW rights AS SELECT k, ts, id FROM everything WHERE side = 1");
        Table result = tables.sqlQuery(SQL);
        RowType resultType = (RowType) DataTypes.ROW(
                        DataTypes.FIELD("l", DataTypes.BIGINT()),
                        DataTypes.FIELD("e", DataTypes.TIMESTAMP(3)),
                        DataTypes.FIELD("r", DataTypes.BIGINT()))
                .getLogicalType();
        InternalTypeInfo<RowData> info = InternalTypeInfo.of(resultType);
        tables.toDataStream(result, info.getDataType().notNull())
                .map(row -> (RowData) row)
                .returns(info)
                .map(new Digest(Long.parseLong(job[3])))
                .returns(info)
                .sinkTo(new DiscardingSink<>());
    }
}
