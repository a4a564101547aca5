import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.columnar.ColumnarRowData;
import org.apache.flink.table.data.columnar.vector.ColumnVector;
import org.apache.flink.table.data.columnar.vector.TimestampColumnVector;
import org.apache.flink.table.data.columnar.vector.VectorizedColumnBatch;
import org.apache.flink.table.data.columnar.vector.heap.HeapByteVector;
import org.apache.flink.table.data.columnar.vector.heap.HeapIntVector;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;

/**
 * Queries in Flink SQL. Each line of input is a job, "query events-directory events limit checkpoint-directory backend";
 * it is answered by "RESULT seconds cpu-seconds rows events sum", or the error. Joins whose name begins with "join-" are
 * those of the class Joins.
 *
 * <p>Both subtasks of the source read every second event from arrays, so that neither is ahead in event time. The clock
 * runs from the first event to the last result. Results are added up in place of a sink.
 */
public class Nexmark {
    static final int TASKS = 2;
    static final Map<String, String> SQL = new HashMap<>();

    static {
        String hop = "TABLE(HOP(TABLE chosen, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))";
        String tumble = "TABLE(TUMBLE(TABLE chosen, DESCRIPTOR(ts), INTERVAL '10' SECOND))";
        String session = "TABLE(SESSION(TABLE chosen PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '10' SECOND))";
        String top = "SELECT k, e, n, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY s, e ORDER BY n DESC, k) AS r"
                + " FROM (" + counts("auction", "0", hop) + ")) WHERE r <= 1";
        SQL.put("q5", top);
        SQL.put("q5-hot", top);
        SQL.put("q7", "SELECT k, e, n, v FROM (" + counts("auction", "MAX(price)", tumble) + ")");
        SQL.put("q11", "SELECT k, e, n, v FROM (" + counts("bidder", "0", session) + ")");
        SQL.put("q12", "SELECT k, e, n, v FROM (" + counts("bidder", "0", tumble) + ")");
        SQL.put("q8", "SELECT CAST(p.bidder AS BIGINT) AS k, p.window_end AS e, a.n AS n, CAST(0 AS BIGINT) AS v FROM"
                + " (SELECT bidder, window_start, window_end FROM TABLE(TUMBLE(TABLE persons, DESCRIPTOR(ts),"
                + " INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end) AS p JOIN"
                + " (SELECT bidder, window_start, window_end, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE auctions,"
                + " DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end) AS a"
                + " ON p.bidder = a.bidder AND p.window_start = a.window_start AND p.window_end = a.window_end");
        SQL.put("w3", "SELECT k, e, n, v FROM (" + counts("campaign", "0", tumble) + ")");
    }

    static String counts(String key, String value, String windows) {
        return "SELECT CAST(" + key + " AS BIGINT) AS k, window_start AS s, window_end AS e, COUNT(*) AS n, CAST("
                + value + " AS BIGINT) AS v FROM " + windows + " GROUP BY " + key + ", window_start, window_end";
    }

    /** What the tasks of a job, which are in this process, have seen. */
    static final class Seen {
        static long began, beganCpu, ended, rows, events, sum;

        static synchronized void reset() {
            began = ended = rows = events = sum = 0;
        }

        static synchronized void begin() {
            if (began == 0) {
                began = System.nanoTime();
                beganCpu = cpu();
            }
        }

        static synchronized void add(long moreRows, long moreEvents, long moreSum, long at) {
            rows += moreRows;
            events += moreEvents;
            sum += moreSum;
            ended = Math.max(ended, at);
        }
    }

    static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** Times in milliseconds as a column of TIMESTAMP(3). */
    static final class Times implements TimestampColumnVector {
        final long[] millis;

        Times(long[] millis) {
            this.millis = millis;
        }

        @Override
        public TimestampData getTimestamp(int row, int precision) {
            return TimestampData.fromEpochMillis(millis[row]);
        }

        @Override
        public boolean isNullAt(int row) {
            return false;
        }
    }

    static ByteBuffer bytes(Path file) throws IOException {
        return ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
    }

    static HeapIntVector ints(Path file, int size) throws IOException {
        HeapIntVector made = new HeapIntVector(size);
        bytes(file).asIntBuffer().get(made.vector, 0, size);
        return made;
    }

    /** The columns of the events in a directory; read once per process. */
    static VectorizedColumnBatch loaded;
    static String loadedFrom;

    static synchronized VectorizedColumnBatch events(String directory, boolean ads, int size) throws IOException {
        String from = directory + " " + size;
        if (!from.equals(loadedFrom)) {
            Path place = Path.of(directory);
            HeapByteVector kinds = new HeapByteVector(size);
            bytes(place.resolve("kind.bin")).get(kinds.vector, 0, size);
            long[] times = new long[size];
            bytes(place.resolve("time.bin")).asLongBuffer().get(times, 0, size);
            loaded = new VectorizedColumnBatch(
                    ads
                            ? new ColumnVector[] {kinds, new Times(times), ints(place.resolve("ad.bin"), size)}
                            : new ColumnVector[] {
                                kinds,
                                new Times(times),
                                ints(place.resolve("auction.bin"), size),
                                ints(place.resolve("bidder.bin"), size),
                                ints(place.resolve("price.bin"), size)
                            });
            loadedFrom = from;
        }
        return loaded;
    }

    /** Turns numbers into events: the first half of the numbers into every second event, the others into the rest. */
    static final class Read extends RichMapFunction<Long, RowData> {
        final String directory;
        final boolean ads;
        final int size;
        transient ColumnarRowData row;
        transient boolean begun;

        Read(String directory, boolean ads, int size) {
            this.directory = directory;
            this.ads = ads;
            this.size = size;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            row = new ColumnarRowData(events(directory, ads, size));
        }

        @Override
        public RowData map(Long number) {
            if (!begun) {
                Seen.begin();
                begun = true;
            }
            int half = size / TASKS;
            int at = number.intValue();
            row.setRowId(at < half ? 2 * at : 2 * (at - half) + 1);
            return row;
        }
    }

    /** Adds up the results whose windows end up to a limit. */
    static final class Digest extends RichMapFunction<RowData, RowData> {
        final long limit;
        transient long rows, events, sum, at;

        Digest(long limit) {
            this.limit = limit;
        }

        @Override
        public RowData map(RowData row) {
            long end = row.getTimestamp(1, 3).getMillisecond();
            if (end <= limit) {
                long n = row.getLong(2);
                rows++;
                events += n;
                sum += (row.getLong(0) * 31 + end + n * 17 + row.getLong(3)) % 1_000_003;
            }
            at = System.nanoTime();
            return row;
        }

        @Override
        public void close() {
            Seen.add(rows, events, sum, at);
        }
    }

    static void define(StreamExecutionEnvironment environment, StreamTableEnvironment tables, String[] job) {
        String query = job[0], directory = job[1];
        int size = Integer.parseInt(job[2]) / TASKS * TASKS;
        boolean ads = query.equals("w3");
        Schema.Builder schema = Schema.newBuilder().column("kind", DataTypes.TINYINT()).column("ts", DataTypes.TIMESTAMP(3));
        for (String name : ads ? new String[] {"ad"} : new String[] {"auction", "bidder", "price"}) {
            schema.column(name, DataTypes.INT());
        }
        schema.columnByExpression("proc", "PROCTIME()").watermark("ts", "ts - INTERVAL '2' SECOND");
        DataTypes.Field[] fields = ads
                ? new DataTypes.Field[] {
                    DataTypes.FIELD("kind", DataTypes.TINYINT()),
                    DataTypes.FIELD("ts", DataTypes.TIMESTAMP(3)),
                    DataTypes.FIELD("ad", DataTypes.INT())
                }
                : new DataTypes.Field[] {
                    DataTypes.FIELD("kind", DataTypes.TINYINT()),
                    DataTypes.FIELD("ts", DataTypes.TIMESTAMP(3)),
                    DataTypes.FIELD("auction", DataTypes.INT()),
                    DataTypes.FIELD("bidder", DataTypes.INT()),
                    DataTypes.FIELD("price", DataTypes.INT())
                };
        RowType type = (RowType) DataTypes.ROW(fields).getLogicalType();
        DataStream<RowData> rows = environment
                .fromSequence(0, size - 1)
                .map(new Read(directory, ads, size))
                .returns(InternalTypeInfo.of(type));
        tables.createTemporaryView("events", tables.fromDataStream(rows, schema.build()));
        if (query.equals("q8")) {
            tables.executeSql("CREATE TEMPORARY VIEW persons AS SELECT ts, bidder FROM events WHERE kind = 0");
            tables.executeSql("CREATE TEMPORARY VIEW auctions AS SELECT ts, bidder FROM events WHERE kind = 1");
        } else if (ads) {
            tables.executeSql("CREATE TEMPORARY TABLE campaigns (ad INT, campaign INT) WITH ('connector' = 'campaigns',"
                    + " 'file' = '" + Path.of(directory).resolve("campaigns.bin") + "')");
            tables.executeSql("CREATE TEMPORARY VIEW chosen AS SELECT e.ts, c.campaign FROM events AS e"
                    + " JOIN campaigns FOR SYSTEM_TIME AS OF e.proc AS c ON e.ad = c.ad WHERE e.kind = 0");
        } else {
            tables.executeSql("CREATE TEMPORARY VIEW chosen AS SELECT ts, auction, bidder, price FROM events"
                    + " WHERE kind = 2");
        }
        Table result = tables.sqlQuery(SQL.get(query));
        RowType resultType = (RowType) DataTypes.ROW(
                        DataTypes.FIELD("k", DataTypes.BIGINT()),
                        DataTypes.FIELD("e", DataTypes.TIMESTAMP(3)),
                        DataTypes.FIELD("n", DataTypes.BIGINT()),
                        DataTypes.FIELD("v", DataTypes.BIGINT()))
                .getLogicalType();
        InternalTypeInfo<RowData> resultInfo = InternalTypeInfo.of(resultType);
        tables.toDataStream(result, resultInfo.getDataType().notNull())
                .map(row -> (RowData) row)
                .returns(resultInfo)
                .map(new Digest(Long.parseLong(job[3])))
                .returns(resultInfo)
                .sinkTo(new DiscardingSink<>());
    }

    static String run(String[] job) throws Exception {
        String query = job[0];
        Configuration settings = new Configuration();
        settings.setString("parallelism.default", String.valueOf(TASKS));
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.dir", Path.of(job[4]).toUri().toString());
        settings.setString("execution.checkpointing.incremental", "true");
        settings.setString("state.backend.type", job[5]);
        settings.setString("taskmanager.memory.managed.size", "512m");
        settings.setString("restart-strategy.type", "none");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.getConfig().set("table.local-time-zone", "UTC");
        if (query.startsWith("join-")) {
            Joins.define(environment, tables, job);
        } else {
            define(environment, tables, job);
        }
        Seen.reset();
        environment.execute(query);
        double cpu = (cpu() - Seen.beganCpu) / 1e9;
        return "RESULT " + (Seen.ended - Seen.began) / 1e9 + " " + cpu + " " + Seen.rows + " " + Seen.events + " "
                + Seen.sum;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            String answer;
            try {
                answer = run(line.split(" "));
            } catch (Exception error) {
                error.printStackTrace();
                answer = "ERROR " + error.toString().replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0);
    }
}
